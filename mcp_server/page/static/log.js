// The log of a run, in the colours of terminals.
import { html, use, useEffect, useLayoutEffect, useRef, useState, empty, typed, Check } from './base.js'
import { address, go, set, ask, useAnswer, isExport } from './state.js'

const CUBE = [0, 95, 135, 175, 215, 255]
const NAMES = ['text', 'bad', 'good', 'warn', 'accent', 'pink', 'cyan', 'text', 'muted']
/** One of 256 colours: the first 16 are the theme's, the rest as they are. */
const palette = (n) => (n < 16 ? `var(--${NAMES[n] || NAMES[n - 8]})` : n > 231 ? `rgb(${Array(3).fill((n - 232) * 10 + 8)})` : `rgb(${[36, 6, 1].map((size) => CUBE[Math.floor((n - 16) / size) % 6])})`)
const SIMPLE = { 1: 'bold', 2: 'dim' }

function restyle(style, codes) {
	for (let i = 0; i < codes.length; i++) {
		const code = codes[i], isGround = (code >= 40 && code < 50) || code > 99, key = isGround ? 'bg' : 'fg'
		if (!code) for (const name in style) delete style[name]
		else if (SIMPLE[code]) style[SIMPLE[code]] = true
		else if (code === 22) { delete style.bold; delete style.dim }
		else if (code === 39 || code === 49) delete style[key]
		else if (code === 38 || code === 48) {
			const isRgb = codes[i + 1] === 2
			style[key] = isRgb ? `rgb(${[2, 3, 4].map((k) => codes[i + k] | 0)})` : palette(codes[i + 2] | 0)
			i += isRgb ? 4 : 2
		} else if (code >= 30 && code < 108 && (code < 48 || code > 89)) style[key] = isGround ? 'var(--mark)' : palette((code % 10) + (code > 89 ? 8 : 0))
	}
}

/** A line in parts with their colours; `style` goes on to the next line. */
function paint(line, style) {
	return line.split(/\x1b\[([\d;]*)m/).map((part, i) => {
		if (i % 2) return restyle(style, part.split(';').map(Number))
		if (!part || !Object.keys(style).length) return part
		const { fg = '', bg = '', ...flags } = style
		return html`<span class=${Object.keys(flags).join(' ')} style=${{ color: fg, background: bg }}>${part}</span>`
	})
}

const MOST_LINES = 6000

function join(old, { text, end }) {
	const [first, ...rest] = text.split('\n'), lines = [...old.lines.slice(0, -1), old.lines.at(-1) + first, ...rest], cut = Math.max(0, lines.length - MOST_LINES)
	return { ...old, end, first_line: old.first_line + cut, lines: lines.slice(cut) }
}

export function Log({ row, attempts = [], proof }) {
	const { attempt: asked, line: wanted } = use(address), attempt = +(asked || row.attempt || 1), isNewest = attempt === (row.attempt || 1)
	const [part, setPart] = useState(), [failure, setFailure] = useState(), [search, setSearch] = useState(''), [follows, setFollows] = useState(true), box = useRef()
	const base = `/runs/${row.id}/log?attempt=${attempt}`, hits = useAnswer(search && base + '&grep=' + encodeURIComponent(search)), { matches } = hits.found || {}
	const read = (query, old) => ask(base + query).then((found) => {
		setFailure()
		setPart(old && found.start === old.end ? join(old, found) : { ...found, lines: found.text.split('\n') })
	}, ({ message }) => setFailure(message))

	useEffect(() => { read(wanted ? '&line=' + wanted : ''); setFollows(!wanted) }, [row.id, attempt, wanted, isExport && row.seq])
	useEffect(() => {
		if (isExport || !follows || !isNewest || !part || (!row.live && part.end >= part.size)) return
		const timer = setTimeout(() => document.hidden || read('&after=' + part.end, part), 1500)
		return () => clearTimeout(timer)
	}, [row, part, follows])
	useLayoutEffect(() => {
		const own = box.current, line = own && wanted && own.querySelector('.wanted')
		if (line) line.scrollIntoView({ block: 'center' })
		else if (own && follows) own.scrollTop = own.scrollHeight
	}, [part, follows])

	const style = {}
	return html`<div class="controls">
			${attempts.length > 1 && html`<label>Attempt <select value=${attempt} onChange=${typed((attempt) => set({ attempt, line: null }))}>${attempts.map(({ n, cause }) => html`<option value=${n}>${n}${cause ? ': ' + cause : ''}</option>`)}</select></label>`}
			<input type="search" placeholder="Search the whole log (regular expression), then Enter" aria-label="Search the log" onChange=${typed(setSearch)} />
			${proof && html`<button onClick=${() => go({ line: proof, attempt: null })}>Go to the proving line</button>`}
			${part && part.first_line > 1 && html`<button onClick=${() => go({ line: 1 })}>Beginning</button>`}
			${wanted && html`<button onClick=${() => go({ line: null })}>End</button>`}
			${row.live && isNewest && html`<${Check} on=${follows} to=${() => { setFollows(!follows); follows || read('') }}>follow<//>`}
		</div>
		${search && html`<div class="hits" role="region" aria-label="Matches" aria-live="polite">${hits.failure || (!matches ? 'Searching …' : `${matches.length}${hits.found.more ? ' newest' : ''} matching lines`)}
			${(matches || []).slice(-200).map(({ line, text }) => html`<button key=${line} onClick=${() => go({ line })}><small>${line}</small> <code>${text}</code></button>`)}</div>`}
		${failure && empty(failure)}
		${part && html`<div class="lines" ref=${box} tabindex="0" role="region" aria-label="Log" onScroll=${({ currentTarget: own }) => follows && own.scrollHeight - own.scrollTop - own.clientHeight > 60 && setFollows(false)}>
			${part.lines.map((line, i) => {
				const number = part.first_line + i
				return html`<div key=${number} class=${number === +wanted ? 'wanted' : number === proof && isNewest ? 'proof' : ''}><small aria-hidden="true">${number}</small><code>${paint(line, style)}</code></div>`
			})}</div>`}`
}
