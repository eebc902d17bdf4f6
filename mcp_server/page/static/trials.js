// The trials of an open sweep: the curve of the best, the tree of those that were kept, each with its diff and verdict.
import { html, useState, number, words, Table } from './base.js'
import { RunLink, useAnswer, isExport } from './state.js'
import { ask as askFor } from './dialogs.js'
import { Diff } from './text.js'

const TONES = { kept: 'good', suspect: 'warn', undecided: 'warn', behind: 'warn', queued: 'calm', running: 'calm', discarded: 'calm', repeat: 'calm', no_change: 'calm' }
const tone = ({ state }) => TONES[state] || 'bad'
const Verdict = ({ trial }) => html`<b class=${tone(trial)}>${words(trial.state)}</b>`
export const figure = ({ mean, sd }) => html`${number(mean)}${sd != null && html` <small>± ${number(sd)}</small>`}`
const gain = ({ gain_sd }) => (gain_sd == null ? '' : (gain_sd > 0 ? '+' : '') + gain_sd.toFixed(1))

/** Each measured trial as a point, the kept ones joined by steps. Far points are drawn at the edge. */
function Best({ trials, metric, goal, choose }) {
	const measured = trials.map((one, i) => ({ ...one, i })).filter(({ mean }) => mean != null), kept = measured.filter(({ state }) => state === 'kept')
	if (measured.length < 2) return null
	const values = kept.map(({ mean }) => mean), low = Math.min(...values), high = Math.max(...values), pad = (high - low || Math.abs(high) || 1) * 0.5
	const x = (i) => 8 + (584 * i) / Math.max(1, trials.length - 1), y = (value) => 8 + (144 * (high + pad - Math.min(high + pad, Math.max(low - pad, value)))) / (high - low + 2 * pad)
	const path = kept.map(({ i, mean }, k) => (k ? 'H' + x(i) + 'V' + y(mean) : 'M' + x(i) + ' ' + y(mean))).join('') + 'H592'
	return html`<figure class="panel"><figcaption>${metric}${goal && html`<span class="read">${goal}; the kept trials are joined</span>`}</figcaption>
		<svg class="best-curve" viewBox="0 0 600 160" role="img" aria-label=${`${metric}: ${number(values[0])} at first, ${number(values.at(-1))} now`}><path d=${path} />
			${measured.map((one) => html`<circle class=${tone(one)} cx=${x(one.i)} cy=${y(one.mean)} r=${one.state === 'kept' ? 4 : 2.5} onClick=${() => choose(one.trial)}><title>${one.trial}: ${number(one.mean)}, ${words(one.state)}</title></circle>`)}</svg></figure>`
}

/** The kept trials on `base`, each with those that were kept on it; a line of single steps stays one list. */
function Tree({ trials, base, choose }) {
	const items = []
	for (let next = trials.filter((one) => one.base === base && one.state === 'kept'); next.length; next = next.length === 1 ? trials.filter((one) => one.base === next[0].trial && one.state === 'kept') : [])
		items.push(...next.map((one) => html`<li><button class="plain" onClick=${() => choose(one.trial)}><b>${one.trial}</b></button> ${one.text} <small>${figure(one)} ${gain(one) && gain(one) + ' sd'}, ${trials.filter(({ base }) => base === one.trial).length} tried on it</small>${next.length > 1 && html`<${Tree} trials=${trials} base=${one.trial} choose=${choose} />`}</li>`))
	return items.length > 0 && html`<ul class="tree">${items}</ul>`
}

function Trial({ trial, row, close }) {
	const answer = useAnswer(trial.files.length && `/sweeps/${row.id}/trials/${trial.trial}`, trial.trial)
	return html`<section aria-label=${'Trial ' + trial.trial}><h2>${trial.trial} <${Verdict} trial=${trial} /> ${!isExport && html`<button onClick=${() => askFor('note', { ...row, trial: trial.trial })}>Keep or discard …</button>`} <button class="plain" aria-label="Close" onClick=${close}>×</button></h2>
		<p>${trial.text}${trial.base && html` <small>on ${trial.base}${trial.by && ', by ' + trial.by}</small>`}</p>${trial.why && html`<p class="why">${trial.why}</p>`}${trial.note && html`<p>Noted: ${trial.note}</p>`}
		<p class="sub">${trial.run_ids.map((id) => html`<${RunLink} id=${id} what="cell" />`)}</p>
		${trial.files.length > 0 && html`<${Diff} answer=${answer} same="No diff was kept." />`}</section>`
}

export function Trials({ found: { row, trials, metric, goal, state = [] } }) {
	const [name, choose] = useState(''), chosen = trials.find(({ trial }) => trial === name)
	return html`<ul>${state.map((line) => html`<li>${line}</li>`)}</ul><${Best} trials=${trials} metric=${metric} goal=${goal} choose=${choose} />
		${chosen && html`<${Trial} key=${name} trial=${chosen} row=${row} close=${() => choose('')} />`}
		<h2>Kept</h2><${Tree} trials=${trials} base="t0" choose=${choose} />
		<h2>Trials</h2><${Table} head=${['trial', 'by', 'verdict', metric, 'n', 'gain in sd', 'files', 'text']} rows=${[...trials].reverse().map((one) => [
			html`<button class="plain" onClick=${() => choose(one.trial)}><b>${one.trial}</b></button>`, one.by, html`<${Verdict} trial=${one} />`, figure(one), one.n || '', gain(one), one.files.join(' '), one.text])} />`
}
