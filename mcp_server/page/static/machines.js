// GPUs with their holders, the queue, jobs of Slurm and Ray.
import { html, useEffect, useState, duration, number, named, words, Table, empty } from './base.js'
import { ask, RunLink } from './state.js'

const Bar = ({ share, label }) => html`<span class="bar"><i style=${{ '--share': share }}></i><span>${label}</span></span>`
const gib = (mib, digits) => (mib / 1024).toFixed(digits)

function Gpu({ gpu, idle }) {
	const { index, name, lease, strangers = [], utilization, memory_used_mib: used, memory_total_mib: size, power_w, power_limit_w, temperature_c, idle_s } = gpu
	return html`<article class=${'gpu' + (lease || strangers.length ? '' : ' free')}><h3>GPU ${index} <small>${name}</small></h3>
		${utilization != null && html`<${Bar} share=${utilization / 100} label=${Math.round(utilization) + ' % busy'} />`}
		${size && html`<${Bar} share=${used / size} label=${`${gib(used, 1)} of ${gib(size, 0)} GiB`} />`}
		<p>${lease ? html`<${RunLink} id=${lease.run_id} />${lease.owner && html` <small>of ${lease.owner}</small>`}` : strangers.length ? html`<b class="warn">not runward's</b>` : html`<b class="good">free</b>`}${idle_s > 60 && html` <small>no run for ${duration(idle_s)}</small>`}</p>
		${strangers.map(({ pid, user, memory_mib, command }) => html`<p><small>pid ${pid}${user && ' of ' + user}${memory_mib && `, ${number(memory_mib)} MiB`}</small> <code>${command}</code></p>`)}
		<p class="quiet">${[power_w != null && Math.round(power_w) + (power_limit_w ? ' of ' + Math.round(power_limit_w) : '') + ' W', temperature_c != null && temperature_c + ' °C', idle > 0 && number(idle) + ' h without a run this week'].filter(Boolean).join(' · ')}</p></article>`
}

export function Machines() {
	const [{ found, failure }, put] = useState({})
	useEffect(() => {
		let timer
		const read = () => {
			timer = setTimeout(read, 5000)
			if (!document.hidden) ask('/gpus').then((found) => timer && put({ found }), ({ message }) => timer && put({ failure: message }))
		}
		read()
		return () => { clearTimeout(timer); timer = null }
	}, [])
	if (!found) return empty(failure || 'Asking the GPUs …')
	const { hosts, jobs = [], idle_hours_week: idle } = found
	return html`<section class="machines" aria-label="Machines">${hosts.map(({ name, heard_s, error, gpus = [], queue = [] }) => html`<section key=${name}><h2>${name} <small>${[heard_s != null && `heard ${duration(heard_s)} ago`, idle[name] && number(+named(idle[name]).reduce((sum, [, h]) => sum + h, 0).toFixed(1)) + ' GPU hours without a run in the last week'].filter(Boolean).join(' · ')}</small></h2>
			${error ? html`<p class="quiet">${error}</p>` : !gpus.length && html`<p class="quiet">No GPUs.</p>`}
			<div class="gpus">${gpus.map((gpu) => html`<${Gpu} key=${gpu.index} gpu=${gpu} idle=${(idle[name] || {})[gpu.index]} />`)}</div>
			${queue.length > 0 && html`<h2>Waiting</h2><ol>${queue.map(({ run_id, needs, why }) => html`<li><${RunLink} id=${run_id} /> ${needs} <small>${why}</small></li>`)}</ol>`}</section>`)}
		${jobs.length > 0 && html`<h2>Jobs of Slurm and Ray</h2><${Table} head=${['run', 'job', 'state', 'why it waits']} rows=${jobs.map((job) => [html`<${RunLink} id=${job.run_id} />`, `${job.backend} ${job.job_id || ''}`, words(job.state), job.pending_reason])} />`}</section>`
}
