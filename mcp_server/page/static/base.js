// What every part uses: Preact and signals as one, numbers and times as people read them.
import { html, render, Component, useState, useEffect, useLayoutEffect, useRef, useMemo } from './vendor/preact-htm.js'

export { html, render, Component, useState, useEffect, useLayoutEffect, useRef, useMemo }

/** A value that components and other values follow. */
export function signal(value) {
	const readers = new Set()
	return {
		get value() { return value },
		set value(next) { if (next !== value) { value = next; for (const read of [...readers]) read() } },
		subscribe(read) { readers.add(read); return () => readers.delete(read) },
	}
}

/** A value that is made of others, anew when one of them is another one and somebody asks. */
export function computed(sources, compute) {
	let known = [], value
	return {
		get value() {
			const found = sources.map((source) => source.value)
			if (found.some((one, i) => one !== known[i])) value = compute(...(known = found))
			return value
		},
		subscribe(read) {
			const ends = sources.map((source) => source.subscribe(read))
			return () => ends.forEach((end) => end())
		},
	}
}

/** The value of a signal in a component, which is drawn again when it changes. */
export function use(source) {
	const [, draw] = useState(), { value } = source
	useEffect(() => {
		const look = () => draw(source.value)
		look() // it may have changed since the component was drawn
		return source.subscribe(look)
	}, [source])
	return value
}

/** A component that is drawn again only when one of its properties is another one. */
export class Steady extends Component {
	shouldComponentUpdate(next) {
		for (const key in next) if (next[key] !== this.props[key]) return true
		return false
	}
}

export const now = signal(Date.now()) // by the server's clock, each second while the page is seen
export const minute = computed([now], (at) => Math.floor(at / 60000) * 60000)
const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']]

export function duration(s) {
	if (s == null || !isFinite(s)) return ''
	s = Math.max(0, Math.round(s))
	const i = Math.max(0, UNITS.findIndex(([size]) => s >= size)), [size, unit] = s ? UNITS[i] : UNITS[3], [less, smaller] = UNITS[i + 1] || []
	const rest = less && s >= 60 && (i < 2 || s < 10 * size) ? Math.floor((s % size) / less) : 0
	return Math.floor(s / size) + ' ' + unit + (rest ? ' ' + rest + ' ' + smaller : '')
}

export const since = (iso, at) => (iso ? (at - Date.parse(iso)) / 1000 : null)

export function ago(iso, at) {
	const s = since(iso, at)
	return s == null ? '' : s < 60 ? 'just now' : duration(s).split(' ').slice(0, 2).join(' ') + ' ago'
}

export function clock(iso) {
	if (!iso) return ''
	const date = new Date(iso), two = '2-digit'
	const day = date.toDateString() === new Date().toDateString() ? '' : date.toLocaleDateString(undefined, { month: 'short', day: 'numeric' }) + ' '
	return day + date.toLocaleTimeString(undefined, { hour: two, minute: two, second: two })
}

export function number(value) {
	if (typeof value !== 'number') return value == null ? '' : String(value)
	if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value).replace(/\B(?=(\d{3})+$)/g, '\u202f')
	const size = Math.abs(value)
	return size >= 1e-3 && size < 1e6 ? String(+value.toPrecision(4)) : value.toExponential(2).replace('e+', 'e')
}

export const large = (value) => (value >= 1e6 ? +(value / 1e6).toPrecision(3) + 'M' : number(value))

export const typed = (put) => (event) => put(event.target.value)
export const words = (kind) => (kind || '').replaceAll('_', ' ')
export const named = (object) => Object.entries(object || {})

/** A text that changes with the clock, without drawing the row around it again. */
export const Clock = ({ of: compute, slow }) => compute(use(slow ? minute : now))
export const empty = (text) => html`<p class="empty">${text}</p>`

export function Table({ head, rows, best }) {
	return html`<div class="scroll"><table><thead><tr>${head.map((name) => html`<th>${name}</th>`)}</tr></thead>
		<tbody>${rows.map((row, i) => html`<tr class=${best === i ? 'best' : ''}>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>`
}

export const Check = ({ on, to, children }) => html`<label><input type="checkbox" checked=${!!on} onChange=${to} /> ${children}</label>`
export const arrow = (isOn, isDown) => (isOn ? (isDown ? ' ↓' : ' ↑') : '')

export const said = signal(null) // a short message at the foot of the page
let saidTimer
export function say(text, isError) {
	said.value = { text, isError }
	clearTimeout(saidTimer)
	saidTimer = setTimeout(() => (said.value = null), isError ? 12000 : 3000)
}

export const copy = (text) => navigator.clipboard ? navigator.clipboard.writeText(text).then(() => say('Copied'), () => say(text)) : say(text)
