// What the page knows: its address, the runs and sweeps, and the one stream that keeps them new.
import { html, signal, now, say, useState, useEffect } from './base.js'

const LISTS = ['open', 'sel', 'tags']
const readAddress = () => Object.fromEntries([...new URLSearchParams(location.search)].map(([key, value]) => [key, LISTS.includes(key) ? value.split(',').filter(Boolean) : value]))
export const address = signal({ ...globalThis.RUNWARD_EXPORT?.start, ...readAddress() })
addEventListener('popstate', () => { clearTimeout(writing); writing = null; address.value = readAddress() })

const NOTHING = { run: null, sweep: null, view: null, tab: null, line: null, attempt: null }
/** The changes that open one thing and close what was open. */
export const only = (changes) => ({ ...NOTHING, ...changes })

function linkTo(changes) {
	const query = Object.entries({ ...address.value, ...changes })
		.filter(([, value]) => value && String(value))
		.map(([key, value]) => key + '=' + encodeURIComponent(value).replace(/%(2C|3A|2F)/g, decodeURIComponent))
	return query.length ? '/?' + query.join('&') : '/'
}

let writing
function write() {
	clearTimeout(writing)
	if (!kept && writing) history.replaceState(null, '', linkTo())
	writing = null
}

export function go(changes) {
	write()
	if (!kept) history.pushState(null, '', linkTo(changes))
	address.value = { ...address.value, ...changes }
}

/** Changes what is seen without a step for the browser's Back; its bar says so once a person pauses. */
export function set(changes) {
	address.value = { ...address.value, ...changes }
	clearTimeout(writing)
	writing = setTimeout(write, 150)
}

/** A link inside the page; with Ctrl it opens in a tab of its own. */
export function Go({ to, children, ...rest }) {
	const open = (event) => {
		if (event.metaKey || event.ctrlKey || event.shiftKey) return
		event.preventDefault()
		go(to)
	}
	return html`<a href=${kept ? '#' : linkTo(to)} onClick=${open} ...${rest}>${children}</a>`
}

export const nameOf = (id, what = 'name') => (runs.value.get(id) || {})[what] || id
export const RunLink = ({ id, what }) => html`<${Go} to=${only({ run: id })}>${nameOf(id, what)}<//>`
export const Back = () => html`<${Go} class="back" to=${only({})} aria-label="Back to the list">←<//>`

// ---- questions to the server; an exported file holds the answers itself
const kept = globalThis.RUNWARD_EXPORT
export const isExport = !!kept
export const isApp = isExport && kept.isApp

export async function ask(path, { method = 'GET', body, signal } = {}) {
	const refuse = (status, error) => { throw Object.assign(new Error([error.cause, error.state, error.remedy].filter(Boolean).join(' ')), { status }) }
	if (kept) return kept.answer(path) || refuse(404, { cause: kept.missing || 'This file holds no more of it.' })
	let answer, found
	try {
		answer = await fetch('/api' + path, { method, signal, headers: body ? { 'Content-Type': 'application/json', 'X-Runward': 'page' } : {}, body: body && JSON.stringify(body) })
		found = await answer.json()
	} catch (error) {
		if (error.name === 'AbortError') throw error
		refuse(0, { cause: 'The server does not answer.', remedy: 'Runs go on without it. Start it again: runward dash' })
	}
	if (answer.status === 401) access.value = 'needed'
	return answer.ok ? found : refuse(answer.status, found.error || { cause: 'HTTP ' + answer.status })
}

/** An answer about something that is open: {found} or {failure}, asked again when one of the keys changes. */
export function useAnswer(path, ...keys) {
	const [answer, setAnswer] = useState(null)
	useEffect(() => {
		let isOver = !path
		const put = (answer) => isOver || setAnswer({ path, ...answer })
		if (path) ask(path).then((found) => put({ found }), (error) => put({ failure: error.message }))
		return () => (isOver = true)
	}, [path, ...keys])
	return answer && answer.path === path ? answer : {}
}

export const access = signal('unknown') // unknown, needed, given
export const me = signal({})
export const runs = signal(new Map())
export const sweeps = signal(new Map())
export const total = signal(0)
export const older = signal(false) // whether there are runs older than those that are loaded
export const stream = signal({}) // live, or behind since when
export const loaded = signal(false)
let cursor, begun, source, timer, pause = 1000, skew = 0

function put({ runs: rows, sweeps: groups, gone = [], now }) {
	const merge = (old, rows = []) => (rows.length + gone.length ? new Map([...old, ...rows.map((row) => [row.id, row])].filter(([id]) => !gone.includes(id))) : old)
	runs.value = merge(runs.value, rows)
	sweeps.value = merge(sweeps.value, groups)
	setClock(now)
}

export async function start() {
	try {
		me.value = await ask('/me')
		access.value = 'given'
		load()
	} catch (error) {
		if (error.status !== 401) say(error.message, true), setTimeout(start, 3000)
	}
}

export async function load() {
	disconnect()
	const page = await ask('/runs').catch((error) => error.status !== 401 && late())
	if (!page) return
	cursor = page.cursor
	runs.value = sweeps.value = new Map()
	put(page)
	total.value = page.total
	older.value = page.older
	begun = page.now
	loaded.value = true
	if (kept) stream.value = { at: page.now }
	connect()
}

export async function loadOlder() {
	const oldest = [...runs.value.values()].reduce((a, b) => (a.created_at < b.created_at ? a : b))
	const page = await ask('/runs?before=' + oldest.id)
	put(page)
	older.value = page.older
}

function setClock(iso) {
	if (iso) skew = Date.parse(iso) - Date.now()
	now.value = Date.now() + skew
}

let waiting = []
function apply() {
	const changes = waiting
	waiting = []
	const known = runs.value, of = (name) => changes.flatMap((change) => change[name] || []), gone = of('gone')
	put({ runs: of('runs'), sweeps: of('sweeps'), gone, now: changes.at(-1).now })
	const fresh = [...runs.value.values()].filter(({ id, created_at }) => created_at > begun && !known.has(id))
	total.value += fresh.length - gone.filter((id) => known.has(id)).length
}

function connect() {
	if (kept || document.hidden || !cursor) return
	disconnect()
	const own = (source = new EventSource('/api/events?cursor=' + encodeURIComponent(cursor)))
	own.onopen = () => { pause = 1000; stream.value = { isLive: true } }
	own.addEventListener('runs', (event) => {
		cursor = event.lastEventId || cursor
		if (!waiting.length) requestAnimationFrame(apply)
		waiting.push(JSON.parse(event.data))
	})
	own.addEventListener('reset', load)
	own.onerror = () => own === source && late()
}

function disconnect() {
	clearTimeout(timer)
	if (source) source.close()
	source = null
}

/** Tries again, a little later each time, and says since when nothing was heard. */
function late() {
	disconnect()
	stream.value = { behind: stream.value.behind || Date.now() }
	timer = setTimeout(() => (loaded.value ? ask('/me').then(connect, late) : load()), pause)
	pause = Math.min(15000, pause * 2)
}

document.addEventListener('visibilitychange', () => {
	if (document.hidden) return disconnect()
	setClock()
	connect()
})

if (isExport && !isApp) now.value = Date.parse(kept.made_at)
else setInterval(() => document.hidden || setClock(), 1000)
