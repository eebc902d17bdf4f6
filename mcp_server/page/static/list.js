// The first screen: runs and sweeps in a table, filters and order in the address.
import { html, use, useMemo, Steady, signal, computed, duration, since, ago, number, large, words, named, Clock, arrow, empty, typed } from './base.js'
import { address, go, set, only, Go, runs, sweeps, loaded, total, older, loadOlder, ask, isExport } from './state.js'

// A sign and a tone for each state: never the colour alone.
const STATES = {
	running: '●good', starting: '◔good', stalled: '▲warn', retrying: '↻warn', queued: '◌calm', finished: '✓done',
	failed: '✕bad', timed_out: '◷bad', lost: '?bad', killed: '■calm', stopped: '■calm', imported: '↧calm',
}

export function State({ row }) {
	const [sign, ...tone] = STATES[row.state] || '·calm'
	return html`<span class=${'state ' + (row.unreachable ? 'warn' : tone.join(''))}><i aria-hidden="true">${sign}</i> ${words(row.state)}${row.unreachable && '?'}</span>`
}

const TEXTS = ['id', 'name', 'state', 'cause', 'kind', 'line', 'owner', 'host', 'sweep', 'cell', 'project', 'backend', 'verdict', 'tag']
const GROUPS = {
	live: (row) => row.live && row.state !== 'queued',
	queued: (row) => row.state === 'queued',
	failed: (row) => /failed|lost|timed_out/.test(row.state),
	finished: (row) => row.state === 'finished',
}

const readQuery = (text = '') => text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
	const [field, ...value] = word.split(':')
	return value.length && TEXTS.includes(field) ? [field, value.join(':')] : [null, word]
})

const valueOf = (row, field) => (field === 'tag' ? row.tags : field === 'host' ? row.host || 'here' : row[field])
const texts = new WeakMap()
function textOf(row) {
	if (!texts.has(row)) texts.set(row, [...TEXTS.map((name) => valueOf(row, name)), row.metric && row.metric.tag].flat().join('\n').toLowerCase())
	return texts.get(row)
}

const matches = (row, query) => query.every(([field, value]) => field
	? [valueOf(row, field)].flat().some((one) => one != null && String(one).toLowerCase().includes(value))
	: textOf(row).includes(value))

const rank = (row) => (row.state === 'queued' ? 1 : row.live ? 0 : 2)
const KEYS = {
	state: (row) => rank(row) + row.state,
	name: (row) => row.name,
	step: (row) => row.progress,
	left: (row) => (row.live ? row.eta_s : null),
	metric: (row) => (row.metric || row.best || {}).value,
	host: (row) => row.host || '',
	owner: (row) => row.owner || '',
	when: (row) => row.ended_at || row.started_at || row.created_at,
}

function comparison(order) {
	const down = order.startsWith('-'), key = KEYS[order.replace('-', '')]
	if (!key) return (a, b) => rank(a) - rank(b) || ((a.ended_at || a.created_at) < (b.ended_at || b.created_at) ? 1 : -1)
	return (a, b) => {
		const x = key(a), y = key(b)
		return x == null || y == null || typeof x !== typeof y ? (x == null) - (y == null) || (typeof x === 'string') - (typeof y === 'string') : (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1)
	}
}

export const shown = computed([address, runs, sweeps], ({ q, state, sort = '', open = [] }, runs, sweeps) => {
	const query = readQuery(q), group = GROUPS[state], fits = (row) => (!group || group(row)) && matches(row, query)
	const cells = new Map(), top = []
	for (const row of runs.values()) {
		if (!fits(row)) continue
		if (!sweeps.has(row.sweep)) top.push(row)
		else if (cells.has(row.sweep)) cells.get(row.sweep).push(row)
		else cells.set(row.sweep, [row])
	}
	for (const row of sweeps.values()) if (cells.has(row.id) || fits(row)) top.push(row)
	const compare = comparison(sort)
	return top.sort(compare).flatMap((row) => {
		const inside = (row.cells && cells.get(row.id)) || []
		const isOpen = open.includes(row.id) || ((query.length || group) && inside.length > 0 && inside.length <= 20)
		return [{ row, depth: 0, isOpen }, ...(isOpen ? inside.sort(compare).map((row) => ({ row, depth: 1 })) : [])]
	})
})

const counts = computed([runs], (runs) => Object.fromEntries(named(GROUPS).map(([name, group]) => [name, [...runs.values()].filter(group).length])))

const spread = computed([runs], (runs) => {
	const found = { owner: new Set(), host: new Set(), tag: new Set(), project: new Set() }
	for (const row of runs.values()) for (const field in found) for (const value of [valueOf(row, field)].flat()) if (value) found[field].add(value)
	return found
})

const sparks = signal(new Map()), seen = new Set(), asked = new Map()
let sparkTimer

const watcher = globalThis.IntersectionObserver && new IntersectionObserver((entries) => {
	for (const { target, isIntersecting } of entries) seen[isIntersecting ? 'add' : 'delete'](target.dataset.id)
	if (!isExport) sparkTimer ??= setTimeout(askSparks, 250)
})

async function askSparks() {
	const due = [...seen].map((id) => runs.value.get(id)).filter((row) => {
		const last = row && asked.get(row.id)
		return row && row.metric && (!last || (last.step !== row.step && Date.now() - last.at > 10000))
	}).slice(0, 60)
	if (due.length && !document.hidden) {
		for (const { id, step } of due) asked.set(id, { step, at: Date.now() })
		const found = await ask('/sparks?' + due.map(({ id }) => 'run=' + id).join('&')).catch(() => ({}))
		sparks.value = new Map([...sparks.value, ...named(found)])
	}
	sparkTimer = seen.size ? setTimeout(askSparks, due.length === 60 ? 100 : 3000) : null
}

export function Spark({ values, tag }) {
	const known = values.filter(Number.isFinite), low = Math.min(...known), height = Math.max(...known) - low || 1
	if (known.length < 2) return null
	const path = values.map((value, i) => Number.isFinite(value)
		? (Number.isFinite(values[i - 1]) ? 'L' : 'M') + ((i / (values.length - 1)) * 78 + 1).toFixed(1) + ' ' + (19 - ((value - low) / height) * 18).toFixed(1) : '').join('')
	return html`<svg class="spark" viewBox="0 0 80 20" role="img" aria-label=${tag}><path d=${path} /></svg>`
}

export const left = (row) => row.live && (row.eta_at ? html`<${Clock} of=${(at) => duration(-since(row.eta_at, at))} />` : duration(row.eta_s))
const when = (row) => row.live ? html`<${Clock} of=${(at) => duration(since(row.started_at || row.created_at, at))} />` : html`<${Clock} slow of=${(at) => ago(row.ended_at || row.created_at, at)} />`
const cell = (name, content, title) => html`<span role="cell" class=${name} title=${title}>${content}</span>`
const line = (row, isAt, depth, cells) => html`<div role="row" class=${`row${depth ? ' inner' : ''}${isAt ? ' at' : ''}${row.live ? '' : ' over'}`} data-id=${row.id}>${cells}</div>`

class RunRow extends Steady {
	componentDidMount() { if (watcher) watcher.observe(this.base) }
	componentWillUnmount() { if (watcher) watcher.unobserve(this.base); seen.delete(this.props.row.id) }
	render({ row, depth, isPicked, isAt, spark }) {
		const { metric } = row, share = row.progress
		return line(row, isAt, depth, [
			cell('pick', html`<input type="checkbox" checked=${isPicked} aria-label=${'Select ' + row.name} onChange=${() => pick(row.id)} />`),
			cell('c-state', html`<${State} row=${row} />`),
			cell('c-name', html`<${Go} to=${only({ run: row.id })} title=${row.id}>${(depth && row.cell) || row.name}<//>${row.attempt > 1 && html`<small title=${row.earlier}> try ${row.attempt}</small>`}${(row.tags || []).slice(0, 3).map((tag) => html` <em class="tag">${tag}</em>`)}${row.verdict && html` <em class=${'tag ' + row.verdict}>${row.verdict}</em>`}`),
			cell('c-text', row.kind && row.line ? html`<b>${row.cause}</b> <code>${row.line}</code>` : row.cause || row.line, [row.cause, row.line].filter(Boolean).join('\n')),
			cell('c-step', row.step != null && html`<span class="progress"><span>${large(row.step)}${row.total ? html`<small> / ${large(row.total)}</small>` : ''}</span>${share != null && html`<i style=${{ '--share': share }}></i>`}</span>`),
			cell('c-left', left(row)),
			cell('c-metric', metric && html`<small>${metric.tag.split('/').pop()}</small><b>${number(metric.value)}</b>${spark && html`<${Spark} ...${spark} />`}`, metric && metric.tag),
			cell('c-gpus', (row.gpus || []).join(' ')),
			cell('c-host', html`${row.host}${row.host && row.heard_s != null && html`<small> ${duration(row.heard_s)}</small>`}`, row.host && ((row.unreachable || {}).why || `heard ${duration(row.heard_s)} ago`)),
			cell('c-owner', row.owner),
			cell('c-when', when(row)),
		])
	}
}

class SweepRow extends Steady {
	render({ row, isOpen, isAt }) {
		const { best } = row, failed = named(row.causes).map(([kind, n]) => n + ' ' + words(kind)).join(', ')
		return line(row, isAt, 0, [
			cell('pick', html`<button class="fold" aria-expanded=${!!isOpen} aria-label=${'Cells of ' + row.name} onClick=${() => toggle('open', row.id)}>${isOpen ? '▾' : '▸'}</button>`),
			cell('c-state', html`<${State} row=${row} />`),
			cell('c-name', html`<${Go} to=${only({ sweep: row.id })} title=${row.id}>${row.name}<//> <em class="tag">sweep</em>`),
			cell('c-text', [best && html`best <b>${best.cell}</b>${best.n > 1 && ', mean of ' + best.n} `, failed ? 'failed: ' + failed : !best && row.cause]),
			cell('c-step', html`<${Cells} cells=${row.cells} />`),
			cell('c-left', left(row)),
			cell('c-metric', best && html`<small>${best.metric}</small><b>${number(best.value)}</b>`, best && best.metric),
			cell('c-gpus'), cell('c-host', row.host), cell('c-owner', row.owner),
			cell('c-when', when(row)),
		])
	}
}

const PARTS = ['finished', 'failed', 'killed', 'running']
export function Cells({ cells }) {
	const count = (names) => names.reduce((sum, name) => sum + (cells[name] || 0), 0)
	const part = (name, size) => size > 0 && html`<i class=${name} style=${{ flexGrow: size }}></i>`
	return html`<span class="progress" title=${PARTS.filter((name) => cells[name]).map((name) => cells[name] + ' ' + name).join(', ')}><span>${count(PARTS.slice(0, 3))}<small> / ${cells.total} cells</small></span>
		<span class="parts">${PARTS.map((name) => part(name, cells[name]))}${part('', cells.total - count(PARTS))}</span></span>`
}

function toggle(name, id) {
	const list = address.value[name] || []
	set({ [name]: list.includes(id) ? list.filter((one) => one !== id) : [...list, id] })
}
export const pick = (id) => toggle('sel', id)

// Rows beyond these are drawn once somebody scrolls near to them.
const FEW = 32, MORE = 60, room = signal(FEW)
const grower = globalThis.IntersectionObserver && new IntersectionObserver((ends) => { if (ends.some((end) => end.isIntersecting)) room.value += MORE }, { rootMargin: '200px' })
class More extends Steady {
	componentDidMount() { grower?.observe(this.base) }
	componentWillUnmount() { grower?.unobserve(this.base) }
	render() { return html`<p />` }
}

export const at = signal(null)
export function move(by) {
	const list = shown.value, index = list.findIndex(({ row }) => row.id === at.value)
	const next = list[Math.max(0, Math.min(list.length - 1, index < 0 ? 0 : index + by))]
	if (!next) return
	at.value = next.row.id
	room.value = Math.max(room.value, list.indexOf(next) + 9)
	requestAnimationFrame(() => {
		const own = document.querySelector(`[data-id="${CSS.escape(next.row.id)}"]`)
		own.scrollIntoView({ block: 'nearest' })
		own.querySelector('a').focus({ preventScroll: true })
	})
}
export function openAt() {
	if (runs.value.has(at.value)) go(only({ run: at.value }))
	else if (at.value) toggle('open', at.value)
}

const COLUMNS = { state: 'State', name: 'Run', text: 'Cause or last line', step: 'Step', left: 'Left', metric: 'Metric', gpus: 'GPUs', host: 'Host', owner: 'Owner', when: 'When' }

function Head({ sort = '' }) {
	return html`<div role="row" class="row head"><span role="columnheader" class="pick" aria-label="Select"></span>${named(COLUMNS).map(([key, label]) => {
		const isOn = sort.replace('-', '') === key, isDown = isOn && sort[0] === '-'
		return html`<span role="columnheader" class=${'c-' + key} aria-sort=${isOn ? (isDown ? 'descending' : 'ascending') : 'none'}>${KEYS[key] ? html`<button onClick=${() => set({ sort: isDown ? null : isOn ? '-' + key : key })}>${label}${arrow(isOn, isDown)}</button>` : label}</span>`
	})}</div>`
}

export function Filters() {
	const { q = '', state } = use(address), found = use(counts), fields = use(spread), said = q.split(/\s+/)
	const choose = (field) => (event) => set({ q: [...said.filter((word) => !word.startsWith(field + ':')), event.target.value && field + ':' + event.target.value].filter(Boolean).join(' ') })
	return html`<div class="filters">
		<input id="search" type="search" placeholder="Filter: words, owner:ada, tag:ppo  ( / )" aria-label="Filter runs" value=${q} onInput=${typed((q) => { room.value = FEW; set({ q }) })} />
		<div class="chips" role="group" aria-label="State"><button aria-pressed=${!state} onClick=${() => set({ state: null })}>All</button>
			${Object.keys(GROUPS).map((name) => html`<button aria-pressed=${state === name} onClick=${() => set({ state: state === name ? null : name })}>${name} <small>${found[name]}</small></button>`)}</div>
		${named(fields).map(([field, values]) => values.size > 1 && html`<select aria-label=${'Only one ' + field} onChange=${choose(field)}><option value="">${field}</option>${[...values].sort().slice(0, 200).map((value) => html`<option value=${value} selected=${said.includes(field + ':' + value)}>${value}</option>`)}</select>`)}
	</div>`
}

export function List() {
	const list = use(shown), { sort, sel = [], run } = use(address), curves = use(sparks), current = use(at), fields = use(spread), count = use(total), known = use(runs), most = use(room), isMore = use(older)
	const picked = useMemo(() => new Set(sel), [sel])
	if (!use(loaded)) return empty('Loading …')
	if (!known.size && !list.length) return html`<div class="empty"><h2>No runs yet</h2><p>An agent starts one with <code>launch_run</code>; in a terminal, <code>runward demo</code> starts a small real training.</p></div>`
	return html`<div role="table" aria-label="Runs" aria-rowcount=${list.length} class=${`list${fields.host.size < 2 && fields.host.has('here') ? ' no-host' : ''}${fields.owner.size < 2 ? ' no-owner' : ''}`}><${Head} sort=${sort} />
		${list.slice(0, most).map(({ row, depth, isOpen }) => row.cells ? html`<${SweepRow} key=${row.id} row=${row} isOpen=${isOpen} isAt=${current === row.id} />`
			: html`<${RunRow} key=${row.id} row=${row} depth=${depth} isPicked=${picked.has(row.id)} isAt=${current === row.id || run === row.id} spark=${curves.get(row.id)} />`)}</div>
	${list.length > most && html`<${More} key=${most} />`}${!list.length && empty(html`Nothing matches. <button onClick=${() => set({ q: null, state: null })}>Show all</button>`)}
	${isMore && empty(html`${number(known.size)} of ${number(count)} runs are loaded. <button data-known=${known.size} onClick=${loadOlder}>Load older ones</button>`)}`
}
