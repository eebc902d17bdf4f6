// The page as MCP App (io.modelcontextprotocol/ui, 2026-01-26): the host hands over a tool's answer, and asks tools for it.
const pending = new Map(), ENDED = ['finished', 'failed', 'killed', 'timed_out', 'lost', 'imported'], FIRST_MS = 2000
let asked = 0, looks = 0, input = {}, own, pushed, hear, most = 720
const send = (message) => parent.postMessage({ jsonrpc: '2.0', ...message }, '*')
const request = (method, params) => new Promise((answer, refuse) => {
	pending.set(++asked, { answer, refuse })
	send({ id: asked, method, params })
})
const textOf = ({ content = [] }) => content.filter(({ type }) => type === 'text').map(({ text }) => text).join('\n')
const factsOf = (result) => result.structuredContent || JSON.parse(textOf(result))

async function call(name, given) {
	const result = await request('tools/call', { name, arguments: given }).catch(({ message }) => { throw new Error('The client does not ask ' + name + ': ' + message) })
	if (result.isError) throw new Error(textOf(result))
	return result
}

// ---- what the host says
const NOTICES = {
	'ui/notifications/tool-input': (params) => (input = params.arguments || {}),
	'ui/notifications/tool-result': (params) => {
		if (params.isError) return
		pushed = params
		if (hear) hear()
		else if (looks) M['state.js'].load()
	},
	'ui/notifications/host-context-changed': settle,
}
addEventListener('message', ({ source, data }) => {
	if (source !== parent || !data || data.jsonrpc !== '2.0') return
	const { id, method, params, result, error } = data
	if (method && id === undefined) (NOTICES[method] || (() => {}))(params || {})
	else if (method) send(['ping', 'ui/resource-teardown'].includes(method) ? { id, result: {} } : { id, error: { code: -32601, message: 'Method not found' } })
	else if (pending.has(id)) {
		const { answer, refuse } = pending.get(id)
		pending.delete(id)
		error ? refuse(error) : answer(result)
	}
})

function settle({ theme, containerDimensions: room }) {
	if (room) most = room.height || room.maxHeight || most
	if (!theme || theme === document.documentElement.dataset.theme) return
	document.documentElement.dataset.theme = theme
	M['chart.js'].scheme.value++
}

const first = request('ui/initialize', { protocolVersion: '2026-01-26', appInfo: { name: 'runward', version: '1' }, appCapabilities: {} }).then(({ hostContext = {} }) => {
	settle(hostContext)
	send({ method: 'ui/notifications/initialized', params: {} })
	new ResizeObserver(([{ target }]) => send({ method: 'ui/notifications/size-changed', params: { width: target.scrollWidth, height: Math.min(most, Math.ceil(target.scrollHeight)) } })).observe(document.getElementById('app'))
})

// ---- rows, from the answers of list_runs and wait_run
const wordsOf = (kind) => KINDS[kind] || kind.replaceAll('_', ' ')
function rowOf(one) {
	const { run_id: id, state, step, total_steps: total, failure, metrics = {}, tail = [] } = one, [tag] = Object.keys(metrics), isLive = !ENDED.includes(state)
	return { ...one, id, name: one.name || id, live: isLive, total, kind: failure && failure.kind, line: (failure && failure.line) || tail.at(-1),
		cause: failure ? wordsOf(failure.kind) : one.pending_reason || one.reason || one.note || one.signal, progress: state === 'finished' ? 1 : step != null && total ? Math.min(1, step / total) : null,
		metric: tag && { tag, value: metrics[tag] }, seq: looks }
}
function sweepRowOf({ sweep_id: id, state, cells, best, metric, failed = [], ...rest }) {
	const causes = {}
	for (const { kind } of failed) causes[kind || 'other'] = (causes[kind || 'other'] || 0) + 1
	return { ...rest, id, name: id, state, live: !ENDED.includes(state), cells, causes, cause: rest.reason, best: best && { ...best, metric, value: best.mean ?? best.value } }
}

async function look(before) {
	if (before) return listed(factsOf(await call('list_runs', { ...input, before })), M['state.js'].runs.value.size)
	if (!looks++ && !pushed) await new Promise((heard) => { hear = heard; setTimeout(heard, FIRST_MS) })
	hear = null
	await first
	const facts = pushed ? factsOf(pushed) : await lookAgain()
	pushed = null
	own ??= facts.total === undefined && facts.runs.map(({ run_id }) => run_id)
	return listed(facts)
}
const listed = ({ runs, sweep, total = runs.length }, known = 0) => ({ now: new Date().toISOString(), total, older: runs.length > 0 && known + runs.length < total, runs: runs.map(rowOf), sweeps: sweep ? [sweepRowOf(sweep)] : [] })

/** The runs of a wait by list_runs, which hands out no news: those are the agent's. */
async function lookAgain() {
	if (!own) return factsOf(await call('list_runs', 'run_ids' in input ? {} : input))
	const answers = own.length > 4 ? [factsOf(await call('list_runs', { limit: 200 }))] : await Promise.all(own.map(async (name) => factsOf(await call('list_runs', { name }))))
	return { runs: answers.flatMap(({ runs }) => runs).filter(({ run_id }) => own.includes(run_id)) }
}

async function describe(id) {
	const one = factsOf(await call('list_runs', { name: id })).runs.find(({ run_id }) => run_id === id)
	if (!one) throw new Error('list_runs does not name it any more.')
	return { ...one, row: rowOf(one), agent: { watch: `wait_run(run_ids=["${id}"])`, log: `read_log(run_id="${id}")`, curves: `read_tb(run_id="${id}")` } }
}

async function readLog(id, asked) {
	const grep = asked.get('grep'), line = +asked.get('line'), attempt = +asked.get('attempt') || undefined
	const text = textOf(await call('read_log', { run_id: id, ...(grep ? { grep, context: 0 } : { attempt, ...(line ? { start_line: Math.max(1, line - 60), count: 200 } : { tail: 500 }) }) }))
	const [head, ...lines] = text.split('\n'), body = lines.at(-1)?.startsWith('[end ') ? lines.slice(0, -1) : lines
	if (grep) return { matches: body.map((one) => one.match(/^(\d+):(.*)$/)).filter(Boolean).map(([, line, text]) => ({ line: +line, text })) }
	const [, from = 1] = head.match(/lines (\d+)-/) || []
	return { attempt, text: body.join('\n'), start: 0, end: 0, size: 0, first_line: +from }
}

async function readCurves(id, asked) {
	const tags = asked.getAll('tag'), from = asked.get('from')
	if (!tags.length) return { tags: (factsOf(await call('read_tb', { run_id: id })).tags || []).map((line) => ({ tag: line.split(' ').slice(0, -5).join(' ') })) }
	const { values = {} } = factsOf(await call('read_tb', { run_id: id, tags, points: 1000, ...(from && { since_step: +from }) }))
	return { series: Object.entries(values).map(([tag, { points = [] }]) => ({ tag, steps: points.map(([step]) => step), values: points.map(([, value]) => (typeof value === 'number' ? value : null)), nan: points.filter(([, value]) => typeof value !== 'number').map(([step]) => step) })) }
}

globalThis.RUNWARD_EXPORT = {
	isApp: true, start: {}, missing: 'Ask the agent, or open the page: runward dash.',
	answer(path) {
		const [base, query] = path.split('?'), asked = new URLSearchParams(query), [, kind, id, part] = base.split('/')
		if (base === '/me') return {}
		if (base === '/runs') return look(asked.get('before'))
		if (kind === 'runs') return part === 'log' ? readLog(id, asked) : part === 'scalars' ? readCurves(id, asked) : !part && describe(id)
		if (kind === 'sweeps') return { row: M['state.js'].sweeps.value.get(id) }
	},
}
