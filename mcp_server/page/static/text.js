// Texts with a form of their own, made of elements and never of markup: Markdown and diffs.
import { html, clock, Table, empty } from './base.js'

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\((https?:[^)\s]+)\)/
export const Out = ({ to, children }) => (/^https?:/.test(to) ? html`<a href=${to} rel="noreferrer noopener" target="_blank">${children || to}</a>` : to)

function inline(text) {
	const match = INLINE.exec(text)
	if (!match) return text
	const [all, code, bold, label, to] = match
	return [text.slice(0, match.index), code ? html`<code>${code}</code>` : bold ? html`<b>${bold}</b>` : html`<${Out} to=${to}>${label}<//>`, inline(text.slice(match.index + all.length))]
}

const cellsOf = (line) => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((cell) => inline(cell.trim().replaceAll('\\|', '|')))
const KINDS = [['code', /^\s*```/], ['heading', /^#{1,6}\s/], ['table', /^\s*\|/], ['item', /^\s*[-*]\s/], ['blank', /^\s*$/]]
const kindOf = (line) => (KINDS.find(([, pattern]) => pattern.test(line)) || ['text'])[0]

export function Markdown({ text }) {
	const lines = text.split('\n'), blocks = []
	for (let i = 0; i < lines.length; ) {
		const kind = kindOf(lines[i]), from = i++
		while (i < lines.length && kind !== 'heading' && (kind === 'code' ? kindOf(lines[i]) !== 'code' : kindOf(lines[i]) === kind)) i++
		const part = lines.slice(from, i)
		if (kind === 'code') { blocks.push(html`<pre>${part.slice(1).join('\n')}</pre>`); i++ }
		else if (kind === 'heading') blocks.push(html`<h3>${inline(part[0].replace(/^#+\s+/, ''))}</h3>`)
		else if (kind === 'table') blocks.push(html`<${Table} head=${cellsOf(part[0])} rows=${part.slice(2).map(cellsOf)} />`)
		else if (kind === 'item') blocks.push(html`<ul>${part.map((item) => html`<li>${inline(item.replace(/^\s*[-*]\s+/, ''))}</li>`)}</ul>`)
		else if (kind === 'text') blocks.push(html`<p>${inline(part.join(' '))}</p>`)
	}
	return html`<div class="markdown">${blocks}</div>`
}

export const Notes = ({ notes = [] }) => notes.length > 0 && html`<h2>Notes</h2><ul class="notes">${notes.map(({ verdict, text, by, at }) => html`<li>${verdict && html`<b class=${'verdict ' + verdict}>${verdict}</b>`} ${text} <small>${by}, ${clock(at)}</small></li>`)}</ul>`

const MOST = 4000, MARKS = { '+': 'plus', '-': 'minus', '@': 'place' }
export function Diff({ answer, same }) {
	const { found: { text, note } = {}, failure } = answer
	if (!text) return empty(failure || note || (answer.found ? same : 'Reading …'))
	const lines = text.split('\n')
	return html`${note && html`<p class="quiet">${note}</p>`}<div class="diff" tabindex="0" role="region" aria-label="Differences">${lines.slice(0, MOST).map((line) => html`<div class=${/^(\+\+\+|---|diff |index )/.test(line) ? 'file' : MARKS[line[0]] || ''}>${line || ' '}</div>`)}
		${lines.length > MOST && empty(html`${lines.length - MOST} more lines`)}</div>`
}
