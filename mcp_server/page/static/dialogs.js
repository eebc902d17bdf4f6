// Stop, note, log in, the list of keys.
import { html, use, useEffect, useRef, useState, signal, say, typed } from './base.js'
import { ask as call, start } from './state.js'

export const dialog = signal(null)
export const noted = signal(0) // counts the notes that were kept from here
export const ask = (kind, row) => (dialog.value = { kind, row })
const close = () => (dialog.value = null)

/** A form whose `send` closes it, or says what is wrong. */
function Modal({ title, children, send = async () => {}, button, isReady = true }) {
	const own = useRef(), [state, set] = useState({})
	useEffect(() => own.current.showModal(), [])
	const submit = (event) => {
		event.preventDefault()
		set({ isBusy: true })
		send().then((answer) => { close(); if (answer) say(answer) }, ({ message }) => set({ failure: message }))
	}
	return html`<dialog ref=${own} onClose=${close} onClick=${(event) => event.target === own.current && close()}><form onSubmit=${submit}><h2>${title}</h2>${children}
		${state.failure && html`<p class="bad" role="alert">${state.failure}</p>`}
		<p class="buttons"><button type="button" onClick=${close}>${button ? 'Cancel' : 'Close'}</button>${button && html`<button class=${button[1]} disabled=${!isReady || state.isBusy}>${button[0]}</button>`}</p></form></dialog>`
}

const pathOf = (row) => `/${row.cells ? 'sweeps' : 'runs'}/${row.id}/`

function Stop({ row }) {
	const [id, setId] = useState(''), [reason, setReason] = useState(''), what = row.cells ? 'sweep' : 'run'
	const send = () => call(pathOf(row) + 'kill', { method: 'POST', body: { run_id: id, reason } }).then(({ text }) => text || 'Stopped.')
	return html`<${Modal} title=${`Stop ${row.name}?`} send=${send} button=${['Stop the ' + what, 'danger']} isReady=${id === row.id}>
		<p>${row.cells ? `Its ${row.cells.running || 0} running cells are stopped, and no more are started.` : `It is ${row.state}${row.step != null ? ' at step ' + row.step : ''}${row.owner ? ', of ' + row.owner : ''}.`} All that it wrote stays.</p>
		<label>Type <code>${row.id}</code> to stop it<input autofocus autocomplete="off" spellcheck=${false} value=${id} onInput=${typed(setId)} /></label>
		<label>Why (for its events)<input value=${reason} maxlength="300" onInput=${typed(setReason)} /></label><//>`
}

function Note({ row }) {
	const [text, setText] = useState(''), [verdict, setVerdict] = useState()
	const send = () => call(pathOf(row) + 'note', { method: 'POST', body: { text, verdict, trial: row.trial } }).then(() => { noted.value++; return 'Noted' })
	return html`<${Modal} title=${'Note on ' + (row.trial || row.name)} send=${send} button=${['Save', 'main']} isReady=${!!(text.trim() || verdict)}>
		<div class="chips" role="group" aria-label="Verdict">${['keep', 'discard', 'inconclusive'].map((one) => html`<button type="button" aria-pressed=${verdict === one} onClick=${() => setVerdict(verdict === one ? undefined : one)}>${one}</button>`)}</div>
		<label>Why<textarea autofocus rows="4" maxlength="2000" onInput=${typed(setText)}></textarea></label><//>`
}

const KEYS = ['/ filter', 'j,k next, previous row', 'Enter open', 'x select', 'c compare what is selected', 'l,v log, curves of the open run', 'g machines', 'Esc back']
const Keys = () => html`<${Modal} title="Keys"><ul>${KEYS.map((key) => html`<li><kbd>${key.split(' ')[0]}</kbd> ${key.split(' ').slice(1).join(' ')}</li>`)}</ul><//>`

const KINDS = { stop: Stop, note: Note, keys: Keys }
export function Dialogs() {
	const open = use(dialog)
	return open && html`<${KINDS[open.kind]} row=${open.row} />`
}

export function Login() {
	const [token, setToken] = useState(''), [failure, setFailure] = useState()
	const enter = (event) => {
		event.preventDefault()
		call('/session', { method: 'POST', body: { token: token.trim() } }).then(start, ({ message }) => setFailure(message))
	}
	return html`<main class="login"><h1>runward</h1><p>On the machine that serves this page, <code>runward dash</code> prints a link that works once.</p>
		<form onSubmit=${enter}><label>Or a token<input type="password" autocomplete="off" value=${token} onInput=${typed(setToken)} /></label>${failure && html`<p class="bad" role="alert">${failure}</p>`}<button class="main">Enter</button></form></main>`
}
