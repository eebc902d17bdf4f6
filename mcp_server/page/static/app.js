// The page: header, the list or what is open, keys.
import { html, render, use, useEffect, useState, duration, said, Clock, Check } from './base.js'
import { address, go, set, only, Go, access, stream, start, isExport, isApp, load, me } from './state.js'
import { List, Filters, move, openAt, pick, at, shown } from './list.js'
import { RunView } from './run.js'
import { Compare, SweepView } from './several.js'
import { Machines } from './machines.js'
import { Dialogs, Login, dialog, ask as askFor } from './dialogs.js'
import { scheme } from './chart.js'

function Heard() {
	const { isLive, behind, at } = use(stream), [follows, follow] = useState()
	useEffect(() => {
		const timer = follows && setInterval(() => document.hidden || load(), 10000)
		return () => clearInterval(timer)
	}, [follows])
	if (isExport) return html`<span class="quiet">as of ${at && new Date(at).toLocaleString()}</span>${isApp && html`<button onClick=${load}>Refresh</button><${Check} on=${follows} to=${() => follow(!follows)}>follow<//>`}`
	return html`<span role="status" class=${'heard' + (behind ? ' bad' : '')}>${behind ? html`<${Clock} of=${() => 'not heard for ' + duration((Date.now() - behind) / 1000)} />` : isLive && '● live'}</span>`
}

const root = document.documentElement, storage = isExport ? {} : localStorage // a frame of others has none
root.dataset.theme = storage.theme || ''
function changeTheme() {
	const isDark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches
	storage.theme = root.dataset.theme = isDark ? 'light' : 'dark'
	scheme.value++
}

function Page() {
	const allowed = use(access), { run, sweep, view, sel = [] } = use(address), { owner } = use(me), message = use(said)
	useEffect(() => { document.title = (run || sweep || (view ? 'Machines' : 'Runs')) + ' · runward' }, [run, sweep, view])
	if (allowed === 'needed') return html`<${Login} />`
	const detail = view === 'compare' ? html`<${Compare} />` : run ? html`<${RunView} key=${run} id=${run} />` : sweep && html`<${SweepView} key=${sweep} id=${sweep} />`
	const tab = (name, label, isOn) => html`<${Go} to=${only({ view: name })} aria-current=${isOn ? 'page' : undefined}>${label}<//>`
	return html`<header class="top"><${Go} class="brand" to=${only({})}>runward<//>
			<nav aria-label="Views">${!isExport && [tab(null, 'Runs', view !== 'machines'), tab('machines', 'Machines', view === 'machines')]}</nav>
			<${Heard} />${owner && html`<span class="quiet">${owner}</span>`}
			<button class="plain" onClick=${changeTheme} aria-label="Dark or light">◐</button><button class="plain" onClick=${() => askFor('keys')} aria-label="Keys">?</button></header>
		<main class=${detail ? 'with-detail' : ''}>${view === 'machines' ? html`<${Machines} />` : html`<div class="side"><${Filters} /><${List} /></div>${detail}`}</main>
		${sel.length > 0 && view !== 'compare' && html`<div class="selection" role="region" aria-label="Selection"><b>${sel.length}</b> selected <button class="main" onClick=${() => go(only({ view: 'compare' }))}>Compare</button><button onClick=${() => set({ sel: [] })}>Clear</button></div>`}
		${message && html`<div class=${'said' + (message.isError ? ' error' : '')} role=${message.isError ? 'alert' : 'status'}>${message.text}</div>`}
		<${Dialogs} />`
}

const KEYS = {
	'/': () => document.getElementById('search')?.focus(),
	j: () => move(1),
	k: () => move(-1),
	Enter: ({ target }) => /^(A|BUTTON)$/.test(target.tagName) || openAt(),
	x: () => shown.value.some(({ row }) => row.id === at.value && !row.cells) && pick(at.value),
	c: () => address.value.sel?.length && go(only({ view: 'compare' })),
	g: () => go(only({ view: 'machines' })),
	l: () => address.value.run && go({ tab: 'log' }),
	v: () => address.value.run && go({ tab: 'curves' }),
	'?': () => askFor('keys'),
}

addEventListener('keydown', (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || dialog.value) return
	const { target, key } = event, isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && target.type !== 'checkbox'
	if (key === 'Escape') {
		const large = document.querySelector('.large'), { run, sweep, view } = address.value
		if (large) large.click()
		else if (isTyping) target.blur()
		else if (run || sweep || view) go(only({ ...(run && { sweep }) }))
	} else if (!isTyping && KEYS[key] && KEYS[key](event) !== true) event.preventDefault()
})

render(html`<${Page} />`, document.getElementById('app'))
start()
