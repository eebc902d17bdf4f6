// runward in OpenCode: its server, and a turn for each news of the runs that a session has launched or asked about.
// `runward install opencode` has written this file, `runward uninstall opencode` removes it.
import { spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { setTimeout as sleep } from "node:timers/promises"

const RUNWARD = ["runward"]
const WOKEN = { RUNWARD_WAKES: `${process.pid}.${Date.now()}` } // the name of this window

export const Runward = async ({ client, directory }) => {
  const speakers = new Map() // by session: the agent and model of its last message
  const sessionOf = new Map() // by run or sweep
  const pending = []
  let latest, monitor

  async function tell(id, text) {
    for (let pause = 500; ; pause = Math.min(2 * pause, 60_000)) {
      try {
        // A subagent takes no turns of its own: its runs are news for the session that started it.
        for (let parent; (parent = (await client.session.get({ path: { id }, throwOnError: true })).data.parentID); ) id = parent
        const body = { ...speakers.get(id), parts: [{ type: "text", text }] }
        return await client.session.promptAsync({ path: { id }, body, throwOnError: true })
      } catch {
        await sleep(pause)
        id = latest // that session may be deleted
      }
    }
  }

  function flush() {
    const groups = Map.groupBy(pending.splice(0), (line) => sessionOf.get(line.split(" ")[1]) ?? latest)
    for (const [id, lines] of groups) tell(id, lines.join("\n"))
  }

  // Started at the first message: what has ended before is news for the session that somebody talks to.
  function watch() {
    const [program, ...words] = RUNWARD
    const env = { ...process.env, ...WOKEN }
    monitor = spawn(program, [...words, "monitor"], { cwd: directory, env, stdio: ["ignore", "pipe", "ignore"] })
    monitor.on("error", () => {})
    createInterface({ input: monitor.stdout }).on("line", (line) => pending.push(line) === 1 && setImmediate(flush))
  }

  return {
    config: async (config) => {
      const entry = { type: "local", command: [...RUNWARD, "serve"], environment: WOKEN, timeout: 1_200_000 }
      config.mcp = { runward: entry, ...config.mcp }
    },
    "chat.message": async ({ sessionID }, { message }) => {
      speakers.set(sessionID, { agent: message.agent, model: message.model })
      latest = sessionID
      if (!monitor) watch()
    },
    "tool.execute.after": async ({ tool, sessionID }, output) => {
      if (!tool.startsWith("runward_")) return
      for (const [, id] of JSON.stringify(output).matchAll(/\b(?:run|sweep)_id\W+([\w.-]+)/g)) sessionOf.set(id, sessionID)
    },
    dispose: async () => monitor?.kill(),
  }
}
