// Several runs beside each other, and a sweep's table.
import { html, use, useMemo, useState, duration, number, words, named, Table, empty, typed, Check, arrow } from './base.js'
import { address, set, only, Go, RunLink, nameOf, runs, sweeps, useAnswer } from './state.js'
import { Cells } from './list.js'
import { Title } from './run.js'
import { Curves } from './chart.js'
import { Diff, Notes } from './text.js'
import { noted } from './dialogs.js'
import { Trials, figure } from './trials.js'

const AT_FIRST = 8

/** Runs that differ in their seed alone, by what they have in common. */
function groupSeeds(ids, settings) {
	const groups = new Map(), own = named(settings).filter(([name]) => !/(^|[._-])seed$/i.test(name))
	for (const id of ids) {
		const label = own.map(([name, values]) => name.split('.').pop() + '=' + (values[id] ?? '–')).join(' ') || 'all'
		groups.set(label, { label, ids: [...(groups.get(label) || { ids: [] }).ids, id] })
	}
	return [...groups.values()]
}

export function Compare() {
	const { sel = [], all, seeds } = use(address), known = use(runs), ids = all ? sel : sel.slice(0, AT_FIRST), [pair, setPair] = useState([])
	const { found, failure } = useAnswer('/compare?' + sel.map((id) => 'run=' + id).join('&')), { settings, metrics, notes = [] } = found || {}
	const [first = sel[0], second = sel[1]] = pair
	const list = useMemo(() => ids.map((id) => ({ id, label: nameOf(id), tag: (known.get(id)?.metric || {}).tag })), [String(ids), known.size])
	const groups = useMemo(() => seeds && groupSeeds(ids, settings), [seeds, String(ids), found])
	const table = (values, show) => html`<${Table} head=${['', ...sel.map((id) => html`<${RunLink} id=${id} />`)]} rows=${named(values).map(([key, value]) => [key, ...sel.map((id) => show(value[id]))])} />`
	const choose = (value, change) => html`<select aria-label="Run" value=${value} onChange=${typed(change)}>${sel.map((id) => html`<option value=${id}>${nameOf(id)}</option>`)}</select>`
	return html`<section class="detail" aria-label="Comparison"><header><${Title} name=${sel.length + ' runs'} call=${`compare_runs(run_ids=${JSON.stringify(sel)})`}>
			<${Check} on=${seeds} to=${() => set({ seeds: seeds ? null : 1 })}>mean ± deviation over seeds<//>
			${ids.length < sel.length && html`<button onClick=${() => set({ all: 1 })}>Draw all ${sel.length}</button>`}<//></header>
		<${Curves} runs=${list} groups=${groups} />
		<h2>Settings that differ</h2>
		${!found ? empty(failure || 'Reading …') : named(settings).length ? table(settings, (value) => String(value ?? '') || '–') : empty('None: one command with one set of values.')}
		${named(metrics).length > 0 && html`<h2>Metrics</h2>${table(metrics, number)}`}
		${notes.map((note) => html`<p class="quiet">${note}</p>`)}
		${second && html`<h2>Code</h2><p class="controls">${choose(first, (id) => setPair([id, second]))} against ${choose(second, (id) => setPair([first, id]))}</p><${CodePair} first=${first} second=${second} />`}</section>`
}

const CodePair = ({ first, second }) => html`<${Diff} answer=${useAnswer(`/runs/${first}/diff?other=${second}`)} same="The same code." />`

export function SweepView({ id }) {
	const known = use(sweeps).get(id), [order, setOrder] = useState({})
	const { found, failure } = useAnswer('/sweeps/' + id, known && JSON.stringify(known.cells), use(noted)), row = known || (found && found.row)
	if (!row) return html`<section class="detail">${empty(failure || 'Loading …')}</section>`
	const { table, metric = 'value', goal, failed, notes, agent } = found || {}, groups = table ? [...table.rows] : []
	const value = (one) => (order.key === metric ? one.mean : (one.settings || {})[order.key])
	if (order.key) groups.sort((a, b) => {
		const x = value(a), y = value(b)
		return x == null || y == null ? (x == null) - (y == null) : (isNaN(x - y) ? String(x).localeCompare(String(y)) : x - y) * (order.isDown ? -1 : 1)
	})
	const names = [...new Set(groups.flatMap(({ settings }) => Object.keys(settings || {})))], best = groups.findIndex((one) => one.best), all = groups.flatMap(({ run_ids = [] }) => run_ids)
	const head = (key) => html`<button onClick=${() => setOrder(order.key !== key ? { key } : order.isDown ? {} : { key, isDown: true })}>${key}${arrow(order.key === key, order.isDown)}</button>`
	const curves = (ids, label) => html`<${Go} class=${ids === all && 'button'} to=${only({ view: 'compare', sel: ids, seeds: 1, tags: [metric] })}>${label}<//>`
	return html`<section class="detail" aria-label=${'Sweep ' + row.name}><header><${Title} row=${row} call=${agent}>${all.length > 1 && curves(all, 'Curves of its cells')}<//>
			<p class="sub"><code class="id">${row.id}</code><${Cells} cells=${row.cells} />${row.live && row.eta_s != null && html`<span>${duration(row.eta_s)} left</span>`}${goal && html`<span>ranked by ${metric}, ${goal === 'min' ? 'lowest' : 'highest'} first</span>`}</p></header>
		${failure && empty(failure)}
		${groups[best] && html`<p class="why">Best: <b>${named(groups[best].settings).map((pair) => pair.join('=')).join(' ') || groups[best].cell}</b>, ${metric} ${figure(groups[best])}${groups[best].n > 1 && ', mean of ' + groups[best].n}</p>`}
		<${Notes} notes=${notes} />
		${named(failed).length > 0 && html`<h2>Failed, by cause</h2><ul>${named(failed).map(([kind, ids]) => html`<li><b>${ids.length} × ${words(kind)}</b>${ids.slice(0, 8).map((id) => html` <${RunLink} id=${id} what="cell" />`)}</li>`)}</ul>`}
		${found && found.trials && html`<${Trials} found=${found} />`}
		${table && !found.trials && html`<h2>Settings and results</h2><${Table} best=${best} head=${[...names.map(head), head(metric), 'n', 'state', '']} rows=${groups.map((one) => [
			...names.map((name) => String((one.settings || {})[name] ?? '–')), figure(one), one.n, one.causes || one.state,
			one.run_ids.length === 1 ? html`<${Go} to=${only({ run: one.run_ids[0] })}>run<//>` : curves(one.run_ids, one.run_ids.length + ' runs')])} />`}</section>`
}
