// One run: why it ended or how it stands, curves, log, files, code, configuration.
import { html, use, useMemo, useState, duration, since, ago, clock, number, large, words, named, copy, Clock, Table, empty } from './base.js'
import { address, only, Go, Back, runs, useAnswer, isExport, isApp } from './state.js'
import { State, Spark, left } from './list.js'
import { Curves } from './chart.js'
import { Log } from './log.js'
import { Markdown, Diff, Notes, Out } from './text.js'
import { ask as askFor } from './dialogs.js'

const TABS = { overview: 'Overview', curves: 'Curves', log: 'Log', files: 'Pictures and files', code: 'Code', config: 'Configuration' }

/** The name of what is open, and what can be done with it. `call`: the one by which an agent sees the same. */
export const Title = ({ row, name = row.name, call, children }) => html`<div class="title"><${Back} /><h1>${name}</h1>${row && html`<${State} row=${row} />`}<span class="actions">
	${row && !isExport && html`${row.live && row.mine && html`<button class="danger" onClick=${() => askFor('stop', row)}>${row.cells ? 'Stop the sweep …' : 'Stop …'}</button>`}<button onClick=${() => askFor('note', row)}>Note …</button>`}
	${call && html`<button onClick=${() => copy(call)}>Copy for the agent</button>`}${children}</span></div>`

export function RunView({ id }) {
	const known = use(runs).get(id), tab = use(address).tab || 'overview', { seq, state, notes } = known || {}
	const { found: run, failure } = useAnswer('/runs/' + id, seq, state, notes), { found: results = {}, failure: missing } = useAnswer(`/runs/${id}/results`, seq, state)
	const row = known || (run && run.row)
	if (!row) return html`<section class="detail">${empty(failure || 'Loading …')}</section>`
	const { agent = {}, attempts, failure: why } = run || {}
	return html`<section class="detail" aria-label=${'Run ' + row.name}>
		<header><${Title} row=${row} call=${agent[tab] || agent.watch} />
			<p class="sub"><button class="id" onClick=${() => copy(row.id)}>${row.id}</button>
				${row.sweep && html`<${Go} to=${only({ sweep: row.sweep })}>sweep ${row.sweep}<//>`}
				${row.host && html`<span>on ${row.host}, heard ${duration(row.heard_s)} ago</span>`}${row.owner && html`<span>of ${row.owner}</span>`}${(row.tags || []).map((tag) => html`<em class="tag">${tag}</em>`)}</p>
			<nav role="tablist">${named(TABS).filter(([key]) => !isApp || !/files|code/.test(key)).map(([key, label]) => html`<${Go} role="tab" aria-selected=${tab === key} to=${{ tab: key, line: null }}>${label}<//>`)}</nav>
		</header>
		<div role="tabpanel">${
			tab === 'curves' ? html`<${RunCurves} row=${row} />`
			: tab === 'log' ? html`<${Log} row=${row} attempts=${attempts} proof=${why && why.line_number} />`
			: tab === 'files' ? html`<${Files} row=${row} results=${results} />`
			: !run ? empty(failure || 'Loading …')
			: tab === 'code' ? html`<${Code} row=${row} run=${run} />`
			: tab === 'config' ? html`<${Config} row=${row} run=${run} />`
			: html`<${Overview} row=${row} run=${run} results=${results} />`}
			${missing && !isApp && html`<p class="quiet">Checkpoints and evaluations are not known. ${missing}</p>`}</div></section>`
}

function RunCurves({ row }) {
	return html`<${Curves} runs=${useMemo(() => [{ id: row.id, label: row.name, tag: row.metric && row.metric.tag, live: row.live, progress: row.progress }], [row.id, row.live, row.progress])} />`
}

function Facts({ rows }) {
	return html`<dl class="facts">${rows.filter(([, value]) => value != null && value !== '' && value !== false).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`
}

function Overview({ row, run, results: { evaluations = [], results_md } }) {
	const { failure, notes = [], events = [], tracker, commit } = run, scores = [...new Set(evaluations.flatMap(({ values }) => Object.keys(values)))]
	const ticking = (of) => html`<${Clock} of=${of} />`
	return html`
		${row.unreachable && html`<div class="why warn"><h2>The host does not answer</h2>${row.unreachable.host}: ${row.unreachable.why}. The state is the last that was known.</div>`}
		${failure ? html`<div class="why bad"><h2>Why it failed: ${row.cause || words(failure.kind)}</h2>
			${failure.line && html`<${Go} class="proofline" to=${{ tab: 'log', line: failure.line_number }}><code>${failure.line}</code> <small>line ${failure.line_number} of the log</small><//>`}
			${failure.context && failure.context.length > 0 && html`<pre>${failure.context.join('\n')}</pre>`}
			${failure.advice && html`<p>${failure.advice}</p>`}</div>`
		: row.cause && !(notes[0] && row.state === 'finished') && html`<div class=${'why' + (row.live ? ' warn' : '')}>${row.cause}</div>`}
		${row.live && row.line && html`<p class="last"><small>last line</small> <code>${row.line}</code></p>`}
		<${Facts} rows=${[
			['Step', row.step != null && number(row.step) + (row.total ? ' of ' + number(row.total) : '')],
			['Left', left(row)],
			['A step takes', row.step_s && number(row.step_s) + ' s'],
			row.metric ? [row.metric.tag, number(row.metric.value)] : [],
			[row.live ? 'Running for' : 'Ran for', row.live ? row.started_at && ticking((at) => duration(since(row.started_at, at))) : duration(row.elapsed_s)],
			['Last output', row.live && row.last_output_at && ticking((at) => ago(row.last_output_at, at))],
			['Attempt', row.attempt > 1 && row.attempt + (row.earlier ? ` (${row.earlier})` : '')],
			['GPUs', row.gpus && row.gpus.join(', ')], ['Backend', row.backend], ['Job', row.job_id],
			['Started', clock(row.started_at)], ['Ended', clock(row.ended_at)],
			['Commit', commit && html`<code>${commit.slice(0, 10)}</code>${run.changes && run.changes.length ? ' with changes' : ''}`],
			['Page', tracker && html`<${Out} to=${tracker.url || tracker.directory || ''} />`],
		]} />
		<${Notes} notes=${notes} />
		${row.gpus && html`<${Gpus} id=${row.id} seq=${row.seq} />`}
		${results_md && html`<details open><summary>results.md</summary><${Markdown} text=${results_md} /></details>`}
		${scores.length > 0 && html`<h2>Evaluations</h2><${Table} head=${['', ...scores]} rows=${evaluations.map(({ name, values }) => [name, ...scores.map((score) => number(values[score]))])} />`}
		<h2>What happened</h2>
		<ol class="events">${[...events].reverse().map(({ seq, at, kind, attempt, text }) => html`<li key=${seq + kind + at}><time title=${at}>${clock(at)}</time> <b>${words(kind)}</b>${attempt > 1 && html` <small>try ${attempt}</small>`} ${text}</li>`)}</ol>`
}

function Files({ row, results: { checkpoints = [] } }) {
	const { found, failure } = useAnswer(`/runs/${row.id}/files`, row.live ? Math.floor((row.progress || 0) * 50) : 'over'), [shown, show] = useState()
	if (!found) return empty(failure || 'Looking for pictures …')
	const all = [...found.pictures, ...(found.images || []).map((one) => ({ name: one.tag, ...one }))]
	const picture = (one, rest) => one.kind === 'mp4' ? html`<video src=${one.url} muted loop playsinline preload="metadata" ...${rest} />` : html`<img src=${one.url} alt=${one.name} loading="lazy" />`
	return html`${shown && html`<div class="large" role="dialog" aria-label=${shown.name} onClick=${() => show()}>${picture(shown, { controls: true, autoplay: true })}<p>${shown.name}</p></div>`}
		${!all.length && empty('No pictures: no PNG, JPEG, GIF, WebP, MP4 in its own directories, no TensorBoard images.')}
		${found.note && html`<p class="quiet">${found.note}</p>`}
		<div class="pictures">${all.map((one) => html`<figure key=${one.url}><button onClick=${() => show(one)} aria-label=${'Enlarge ' + one.name}>${picture(one)}</button>
			<figcaption>${one.name} <small>${one.step != null && `step ${number(one.step)} `}${clock(one.at)}</small></figcaption></figure>`)}</div>
		${checkpoints.length > 0 && html`<h2>Checkpoints</h2><${Table} head=${['file', 'step', 'written', 'size']} rows=${checkpoints.map(({ path, step, at, size }) => [html`<button class="id" title="Copy" onClick=${() => copy(path)}>${path}</button>`, number(step), clock(at), size && large(size) + 'B'])} />`}`
}

function Code({ row, run }) {
	return html`<${Facts} rows=${[['Commit', run.commit], ['Changed', (run.changes || []).join(', ')], ['Copy kept', run.code_kept ? 'yes' : 'no']]} />
		<${Diff} answer=${useAnswer(`/runs/${row.id}/diff`)} same="The code is that of its commit." />`
}

function Config({ row, run }) {
	const { command, cwd, params, params_changed: changed = [], env, packages } = run
	return html`<h2>Command</h2><pre>${command}</pre><p class="quiet">in ${cwd}</p>
		${changed.length > 0 && html`<p>Changed by retries: ${changed.join('; ')}</p>`}
		<${Facts} rows=${named(params).map(([name, value]) => [name, typeof value === 'object' ? JSON.stringify(value) : String(value)])} />
		${named(env).length > 0 && html`<h2>Environment</h2><${Facts} rows=${named(env)} />`}
		${packages > 0 && html`<p class="quiet">${packages} packages are recorded.</p>`}`
}

const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length
function Gpus({ id, seq }) {
	const { found } = useAnswer(`/runs/${id}/gpus`, seq)
	return found && found.gpus && html`<h2>Use of GPUs</h2><${Table} head=${['GPU', 'busy (mean)', 'memory (most)', '']} rows=${named(found.gpus).map(([name, { utilization = [], memory_mib: memory = [] }]) => [name, utilization.length && Math.round(mean(utilization)) + ' %', memory.length && number(Math.max(...memory)) + ' MiB', html`<${Spark} values=${utilization} tag="busy" />`])} />`
}
