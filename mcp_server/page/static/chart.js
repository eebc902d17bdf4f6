// Curves: one panel a metric, drawn by uPlot once a person opens them.
import { html, use, useEffect, useRef, useState, signal, number, duration, clock, words, empty, typed, Check } from './base.js'
import { address, set, ask } from './state.js'

let library = globalThis.uPlot && Promise.resolve()
const loadLibrary = () => (library ??= new Promise((onload, onerror) => document.head.append(Object.assign(document.createElement('script'), { src: '/static/vendor/uplot.js', onload, onerror }))))

export const scheme = signal(0) // counts changes of colours
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => scheme.value++)

// A canvas knows no names of colours: ask an element.
const probe = document.createElement('i')
function css(color) {
	document.body.append(probe)
	probe.style.color = color
	const found = getComputedStyle(probe).color
	probe.remove()
	return found
}
const HUES = [212, 22, 140, 290, 335, 48, 186, 0]
const hue = (i) => `light-dark(hsl(${HUES[i % 8]} 80% 42%),hsl(${HUES[i % 8]} 85% 70%))`
const pale = (color, share) => color.replace('(', 'a(').replace(')', `, ${share})`)

function smooth(values, weight) {
	let sum = 0, norm = 0
	return values.map((value) => {
		if (value == null || !weight) return value
		sum = sum * weight + (1 - weight) * value
		norm = norm * weight + (1 - weight)
		return sum / norm
	})
}

/** A series with its places on the axis. Over time those are its points with a time, in the order of that. */
function arrange(one, x) {
	if (x === 'step') return { ...one, xs: one.steps }
	const times = one.times || [], order = [...times.keys()].filter((i) => times[i] != null).sort((i, k) => times[i] - times[k]), begun = x === 'wall' ? 0 : times[order[0]]
	return { ...one, begun, xs: order.map((i) => times[i] - begun), values: order.map((i) => one.values[i]) }
}

/** Mean and deviation of several series, at 200 places that all of them reach. */
function band(list) {
	const axes = list.map(({ xs }) => xs)
	const from = Math.max(...axes.map((axis) => axis[0])), to = Math.min(...axes.map((axis) => axis.at(-1)))
	if (!(to > from)) return null
	const xs = Array.from({ length: 200 }, (_, i) => from + ((to - from) * i) / 199)
	const rows = list.map(({ values }, k) => {
		let i = 0
		return xs.map((place) => {
			const axis = axes[k]
			while (i < axis.length - 2 && axis[i + 1] < place) i++
			const [y, z] = [values[i], values[i + 1]]
			return y == null || z == null ? null : y + ((z - y) * (place - axis[i])) / (axis[i + 1] - axis[i] || 1)
		})
	})
	const over = (compute) => xs.map((_, i) => (rows.some((row) => row[i] == null) ? null : compute(rows.map((row) => row[i]), i)))
	const mean = over((values) => values.reduce((a, b) => a + b) / values.length)
	const deviation = over((values, i) => Math.sqrt(values.reduce((sum, value) => sum + (value - mean[i]) ** 2, 0) / Math.max(1, values.length - 1)))
	return { xs, mean, deviation }
}

/** Draws NaN at its step; restarts and what a policy did as lines with a word. */
const drawMarks = (nans, lines) => ({ ctx, bbox, valToPos }) => {
	const ratio = devicePixelRatio
	const each = (list, draw) => {
		for (const { x, tone, label } of list) {
			const left = Math.round(valToPos(x, 'x', true))
			if (left < bbox.left || left > bbox.left + bbox.width) continue
			ctx.strokeStyle = ctx.fillStyle = tone
			ctx.beginPath()
			draw(left, label)
		}
	}
	ctx.save()
	ctx.font = 11 * ratio + 'px system-ui'
	each(nans, (left) => { ctx.moveTo(left - 4 * ratio, bbox.top); ctx.lineTo(left + 4 * ratio, bbox.top); ctx.lineTo(left, bbox.top + 8 * ratio); ctx.fill() })
	ctx.setLineDash([4 * ratio, 4 * ratio])
	each(lines, (left, label) => { ctx.moveTo(left, bbox.top); ctx.lineTo(left, bbox.top + bbox.height); ctx.stroke(); const isLate = left > bbox.left + bbox.width * 0.8; ctx.textAlign = isLate ? 'right' : 'left'; ctx.fillText(label, left + (isLate ? -4 : 4) * ratio, bbox.top + 12 * ratio) })
	ctx.restore()
}

function nearest(values, i) {
	for (let k = i; k >= 0 && k > i - 50; k--) if (values[k] !== undefined) return values[k]
}

const HEIGHT = 230

/** `curves`: [{label, hue, series, marks}]; `bands`: [{label, hue, list}], a mean over seeds each. */
function Panel({ tag, curves, bands, x, isLog, weight, onZoom }) {
	const place = useRef(), read = useRef(), plot = useRef(), zoom = useRef(), colours = use(scheme)
	const draw = () => {
		const tables = [], series = [{}], fills = []
		const add = (xs, ys, stroke, label, width = 1.5) => { tables.push([xs, ys]); series.push({ stroke, label, width, points: { show: label && xs.length < 40 } }) }
		for (const { label, hue, series: found } of curves) {
			const { xs } = found, color = css(hue)
			if (weight) add(xs, found.values, pale(color, 0.3), null, 1)
			add(xs, smooth(found.values, weight), color, label)
		}
		for (const { label, hue, list } of bands) {
			const found = list.length && band(list), color = css(hue)
			if (!found) continue
			if (list.length > 1) {
				for (const sign of [1, -1]) add(found.xs, found.mean.map((mean, i) => mean == null ? null : mean + sign * found.deviation[i]), 'transparent')
				fills.push({ series: [series.length - 2, series.length - 1], fill: pale(color, 0.2) })
			}
			add(found.xs, found.mean, color, `${label} (n ${list.length})`, 2)
		}
		if (!tables.length) return
		const isTime = x !== 'step', isWall = x === 'wall', shown = (value) => (isTime ? (value % 1 ? +value.toFixed(2) + ' s' : duration(value)) : value >= 1e5 ? value / 1000 + 'k' : value), stroke = css('var(--muted)'), warn = css('var(--warn)'), grid = { stroke: css('var(--line)'), width: 1 }, several = curves.length + bands.length > 1
		const lines = curves.flatMap(({ marks, series }) => marks.map(({ step, time, label }) => ({ label, tone: warn, x: isTime ? time && time - series.begun : step }))).filter((mark) => mark.x != null)
		const nans = curves.flatMap(({ series, hue }) => {
			const tone = css(several ? hue : 'var(--bad)')
			return series.xs.filter((_, i) => series.values[i] == null).map((x) => ({ x, tone }))
		})
		const [min, max] = zoom.current || []
		plot.current = new uPlot({
			width: place.current.clientWidth, height: HEIGHT, series, bands: fills, legend: { show: false },
			scales: { x: { time: isWall, ...(zoom.current && { min, max }) }, y: { distr: isLog ? 3 : 1 } },
			axes: [
				{ stroke, grid, ticks: grid, ...(!isWall && { values: (_, list) => list.map(shown) }) },
				{ stroke, grid, ticks: grid, size: 64, values: (_, list) => list.map(number) },
			],
			cursor: { drag: { x: true, y: false } },
			hooks: {
				draw: [drawMarks(nans, lines)],
				setSelect: [({ select, posToVal }) => {
					if (select.width < 4) return
					zoom.current = [posToVal(select.left, 'x'), posToVal(select.left + select.width, 'x')]
					if (x === 'step') onZoom(zoom.current)
				}],
				setCursor: [({ cursor, data }) => {
					const i = cursor.idx, at = i == null ? '' : isWall ? clock(data[0][i] * 1000) : isTime ? duration(data[0][i]) : 'step ' + number(data[0][i])
					const values = i == null ? [] : series.map(({ label }, k) => [label, label && nearest(data[k], i)]).filter(([label, value]) => label && value !== undefined)
					read.current.textContent = [at, ...values.slice(0, 8).map(([label, value]) => (several ? label + ' ' : '') + number(value ?? 'nan'))].join('  ')
				}],
			},
		}, tables.length > 1 ? uPlot.join(tables, tables.map(() => [0, 2])) : tables[0], place.current)
		plot.current.over.addEventListener('dblclick', () => { zoom.current = null; onZoom(null) })
		place.current.dataset.drawn = performance.now()
	}
	useEffect(() => {
		let isOver = false
		const observer = new ResizeObserver(() => plot.current && plot.current.setSize({ width: place.current.clientWidth, height: HEIGHT }))
		loadLibrary().then(() => { if (!isOver) { draw(); observer.observe(place.current) } })
		return () => { isOver = true; observer.disconnect(); if (plot.current) plot.current.destroy(); plot.current = null }
	}, [curves, bands, x, isLog, weight, colours])
	const nan = curves.reduce((sum, { series }) => sum + (series.nan || []).length, 0)
	return html`<figure class="panel"><figcaption>${tag} ${nan > 0 && html`<small class="bad">${nan} × nan</small>`}<small class="read" ref=${read}></small></figcaption>
		<div ref=${place} role="img" aria-label=${'Curve of ' + tag}></div></figure>`
}

function TagPanel({ tag, runs, groups, found, x, ...rest }) {
	const drawn = useRef({})
	if (drawn.current.found !== found || drawn.current.groups !== groups || drawn.current.x !== x) { // else the panel stays as it is
		const of = (id) => (found[id] ? found[id].series : []).filter((one) => one.tag === tag).map((one) => arrange(one, x)).find(({ xs }) => xs.length)
		drawn.current = { found, groups, x,
			curves: groups ? [] : runs.map(({ id, label }, i) => ({ label, hue: hue(i), series: of(id), marks: runs.length > 1 ? [] : marksOf(found[id]) })).filter(({ series }) => series),
			bands: (groups || []).map(({ label, ids }, i) => ({ label, hue: hue(i), list: ids.map(of).filter(Boolean) })) }
	}
	const { curves, bands } = drawn.current
	return curves.length || bands.some(({ list }) => list.length) ? html`<${Panel} tag=${tag} curves=${curves} bands=${bands} x=${x} ...${rest} />`
		: html`<figure class="panel"><figcaption>${tag}</figcaption>${empty(Object.keys(found).length ? (x === 'step' ? 'No values' : 'No wall times') : 'Reading …')}</figure>`
}

const secondsOf = (at) => (typeof at === 'string' ? Date.parse(at) / 1000 : at)
const marksOf = ({ attempts = [], events = [] } = {}) => [...attempts.filter(({ n }) => n > 1).map((one) => ({ ...one, label: 'try ' + one.n })), ...events.map((one) => ({ ...one, label: words(one.kind) }))]
	.map(({ step, at, label }) => ({ step, time: secondsOf(at), label }))

/** Curves of one run or several, with what is drawn in the address. `runs`: [{id, label, tag, live, progress}]. */
export function Curves({ runs, groups }) {
	const { tags: chosen = [], x = 'step', log, smooth: weight = '0' } = use(address)
	const [index, setIndex] = useState(), [found, setFound] = useState({}), [filter, setFilter] = useState(''), [range, setRange] = useState()
	const ids = runs.map(({ id }) => id).join(), all = (query, failed) => Promise.all(runs.map(({ id }) => ask(`/runs/${id}/scalars${query}`).catch(failed)))
	const beat = runs.map(({ live, progress }) => (live ? Math.floor((progress || 0) * 100) : 'over')).join()
	const failures = [], newest = useRef({ asked: 0, heard: 0 }).current
	useEffect(() => {
		let isOver = false
		all('', ({ message }) => { failures.push(message); return { tags: [] } }).then((answers) => isOver || setIndex({ tags: [...new Set(answers.flatMap(({ tags }) => tags.map(({ tag }) => tag)))], failure: failures[0] }))
		return () => (isOver = true)
	}, [ids, !!index && !index.tags.length && beat])
	const tags = index ? index.tags : [], main = runs[0] && runs[0].tag
	const known = chosen.filter((tag) => tags.includes(tag)), shown = known.length ? known : [tags.includes(main) ? main : tags[0]].filter(Boolean)
	useEffect(() => {
		if (!shown.length || !index) return
		const own = ++newest.asked
		const query = '?points=1500&' + shown.map((tag) => 'tag=' + encodeURIComponent(tag)).join('&') + (range ? `&from=${Math.floor(range[0])}&to=${Math.ceil(range[1])}` : '')
		all(query, () => ({ series: [] })).then((answers) => { // of a run that is quick, the next question may be out before
			if (own < newest.heard) return
			newest.heard = own
			setFound(Object.fromEntries(answers.map((answer, i) => [runs[i].id, answer])))
		})
	}, [index, ids, shown.join('\n'), String(range), beat])
	if (!index) return empty('Reading curves …')
	if (!tags.length) return empty(index.failure || 'No curves: no event, CSV, JSON-lines or wandb file of this run, and no numbers in its log.')
	const listed = tags.filter((tag) => tag.toLowerCase().includes(filter.toLowerCase()))
	return html`<div class="curves">
		<aside class="tags"><input type="search" placeholder="Metrics" aria-label="Filter metrics" value=${filter} onInput=${typed(setFilter)} />
			<ul>${listed.slice(0, 300).map((tag) => html`<li key=${tag}><${Check} on=${shown.includes(tag)} to=${() => set({ tags: shown.includes(tag) ? shown.filter((one) => one !== tag) : [...shown, tag] })}>${tag}<//></li>`)}</ul>
			${listed.length > 300 && html`<small>${listed.length - 300} more: filter them</small>`}</aside>
		<div><div class="controls">
			<label>Over <select value=${x} onChange=${typed((x) => set({ x }))}><option value="step">step</option><option value="time">time since its start</option><option value="wall">wall time</option></select></label>
			<label>Smoothing <input type="range" min="0" max="0.99" step="0.01" value=${weight} onInput=${typed((smooth) => set({ smooth }))} /> ${(+weight).toFixed(2)}</label>
			<${Check} on=${log} to=${() => set({ log: log ? null : 1 })}>log scale<//>
			${range && html`<button onClick=${() => setRange()}>Whole run</button>`}</div>
			${(groups || runs).length > 1 && html`<p class="key">${(groups || runs).map(({ label }, i) => html`<span style=${{ '--key': hue(i) }}>${label}</span>`)}</p>`}
			<div class="panels">${shown.map((tag) => html`<${TagPanel} key=${tag} tag=${tag} runs=${runs} groups=${groups} found=${found} x=${x} isLog=${!!log} weight=${+weight} onZoom=${setRange} />`)}</div></div></div>`
}
