// Two sessions of the official TypeScript SDK, lead and peer, use every tool of
// a gateway once well and once badly. How they reach it says the argument: http
// or stdio. The first thing that differs from what is promised ends it with
// code 1 and a sentence.
import assert from 'node:assert/strict'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { Ajv2020 } from 'ajv/dist/2020.js'

const env = process.env
const how = process.argv[2]
const tools = [
  'bridge_answer', 'bridge_ask', 'bridge_broadcast', 'bridge_poll', 'bridge_read', 'bridge_reply',
  'bridge_roster', 'bridge_send', 'bridge_spawn', 'bridge_stop', 'bridge_trace', 'bridge_whoami',
]
const nobody = '01a22b71-da09-7a2b-b185-f279af966e45'
const patience = { timeout: 260_000 }

function transport (token) {
  if (how === 'http') {
    return new StreamableHTTPClientTransport(new URL(env.BRIDGED_URL), { requestInit: { headers: { Authorization: `Bearer ${token}` } } })
  }
  return new StdioClientTransport({ command: env.BRIDGED, args: ['mcp'], env: { ...env, BRIDGED_TOKEN: token }, stderr: 'inherit' })
}

async function connect (name, token) {
  const client = new Client({ name, version: '1' })
  await client.connect(transport(token))
  // The SDK holds every result to the output schema of its tool from here on.
  const listed = (await client.listTools()).tools
  assert.deepEqual(listed.map(t => t.name).sort(), tools, 'the tools')
  const call = async (tool, args, options) => {
    used.add(tool)
    return client.callTool({ name: tool, arguments: args }, undefined, { ...patience, ...options })
  }
  return {
    client,
    listed,
    good: async (tool, args, options) => {
      const r = await call(tool, args, options)
      const text = r.content.map(c => c.text).join('')
      assert.ok(!r.isError, `${tool}(${JSON.stringify(args)}) failed: ${text}`)
      assert.ok(text.length > 0 && r.structuredContent, `${tool} says nothing`)
      return r.structuredContent
    },
    bad: async (tool, args, code) => {
      const r = await call(tool, args)
      const text = r.content.map(c => c.text).join('')
      assert.ok(r.isError && text.startsWith(code + ': '), `${tool}(${JSON.stringify(args)}) came to ${text}, want ${code}`)
      assert.equal(r.structuredContent.error.code, code, `${tool}: the code in the structure`)
      refused.add(tool)
    },
  }
}

const used = new Set()
const refused = new Set()
const step = async (what, fn) => {
  try {
    await fn()
  } catch (err) {
    throw new Error(`${how}: ${what}`, { cause: err })
  }
  console.log(`${how}: ${what}`)
}

const lead = await connect('lead', env.LEAD_TOKEN)
const peer = await connect('peer', env.PEER_TOKEN)

await step('schemas are valid, and say what each argument is', () => {
  const ajv = new Ajv2020({ strict: true, strictRequired: false, validateFormats: false })
  for (const tool of lead.listed) {
    assert.ok(tool.description && tool.inputSchema && tool.outputSchema && tool.annotations, `${tool.name} lacks a part`)
    ajv.compile(tool.inputSchema)
    ajv.compile(tool.outputSchema)
    for (const [arg, schema] of Object.entries(tool.inputSchema.properties ?? {})) {
      assert.ok(schema.description, `${tool.name}: ${arg} is not described`)
    }
  }
})

await step('a brief, a question about it, its answer and the reply', async () => {
  const progress = []
  const waits = lead.good('bridge_send', { to: 'peer', content: 'tabs or blanks? «ü»', wait_seconds: 120 }, { onprogress: p => progress.push(p) })
  let brief
  while (!brief) {
    brief = (await peer.good('bridge_poll', { wait_seconds: 20 })).messages.find(m => m.kind === 'SEND')
  }
  assert.equal(brief.content, 'tabs or blanks? «ü»')
  const asks = peer.good('bridge_ask', { question: 'in all files?', to: 'lead', timeout_seconds: 120 })
  const question = await waits
  assert.equal(question.state, 'ask')
  assert.equal(question.question.content, 'in all files?')
  assert.ok(progress.length > 0 && progress.every(p => typeof p.progress === 'number'), 'no progress came while the send waited')
  const answers = lead.good('bridge_answer', { turn_id: question.turn_id, content: 'yes', wait_seconds: 120 })
  assert.equal((await asks).answer, 'yes')
  const replied = await peer.good('bridge_reply', { content: 'blanks', in_reply_to: brief.msg_id })
  assert.equal(replied.state, 'queued')
  const reply = await answers
  assert.equal(reply.state, 'replied')
  assert.equal(reply.reply.content, 'blanks')

  const whole = await peer.good('bridge_read', { msg_id: brief.msg_id })
  assert.equal(whole.content, brief.content)
  let trace
  do { // a step is in it a second later at the latest
    trace = await lead.good('bridge_trace', { trace_id: brief.trace_id })
  } while (!trace.hops.some(h => h.step === 'drained' && h.kind === 'REPLY'))
  assert.ok(!JSON.stringify(trace).includes('blanks'), 'a trace holds a body')
})

await step('a broadcast', async () => {
  const told = await lead.good('bridge_broadcast', { content: 'to all of you', group: 'foreigners' })
  assert.equal(told.recipients.length, 1)
  const got = (await peer.good('bridge_poll', { wait_seconds: 60 })).messages
  assert.deepEqual(got.map(m => [m.kind, m.content]), [['BROADCAST', 'to all of you']])
})

await step('an agent is spawned, does its task and is stopped', async () => {
  const spawned = await lead.good('bridge_spawn', { profile: 'aide', name: `aide-${how}`, task: 'do it', timeout_seconds: 240 })
  assert.equal(spawned.state, 'spawned')
  let reply
  while (!reply) {
    reply = (await lead.good('bridge_poll', { wait_seconds: 50 })).messages.find(m => m.kind === 'REPLY')
  }
  assert.equal(reply.in_reply_to, spawned.msg_id)
  const roster = await lead.good('bridge_roster', { kind: 'worker' })
  assert.ok(roster.entities.some(e => e.gid === spawned.gid), 'the roster lacks it')
  assert.equal((await lead.good('bridge_stop', { target: spawned.address })).state, 'stopped')
})

await step('a call that is cancelled takes no mail', async () => {
  const cancel = new AbortController()
  const call = lead.good('bridge_poll', { from: 'peer', wait_seconds: 200 }, { signal: cancel.signal, onprogress: () => cancel.abort('enough') })
  await assert.rejects(call, /enough|abort/i)
  await peer.good('bridge_send', { to: 'lead', content: 'still there?' })
  const got = (await lead.good('bridge_poll', { from: 'peer', wait_seconds: 60 })).messages
  assert.deepEqual(got.map(m => m.content), ['still there?'])
})

await step('who I am, and what waits', async () => {
  const me = await lead.good('bridge_whoami', {})
  assert.equal(me.name, 'lead')
  assert.equal(me.held, 0)
})

await step('bad input is refused in words', async () => {
  await lead.bad('bridge_send', { to: 'nobody-of-that-name', content: 'x' }, 'UNKNOWN_RECIPIENT')
  await lead.bad('bridge_send', { to: 'peer', content: 'x', wait_seconds: 241 }, 'BAD_REQUEST')
  await lead.bad('bridge_poll', { wait_seconds: '5' }, 'BAD_REQUEST')
  await lead.bad('bridge_read', { msg_id: nobody }, 'BAD_REQUEST')
  await lead.bad('bridge_reply', { content: 'x', in_reply_to: nobody }, 'BAD_REQUEST')
  await lead.bad('bridge_ask', { question: 'who?', to: 'nobody-of-that-name' }, 'UNKNOWN_RECIPIENT')
  await lead.bad('bridge_answer', { turn_id: nobody, content: 'x' }, 'TOO_LATE')
  await lead.bad('bridge_broadcast', { content: 'x', group: 'nobody-is-in-it' }, 'UNKNOWN_RECIPIENT')
  await lead.bad('bridge_spawn', { profile: 'no-such-profile' }, 'PROFILE_UNKNOWN')
  await lead.bad('bridge_stop', { target: 'peer' }, 'NOT_ALLOWED')
  await lead.bad('bridge_roster', { kynd: 'worker' }, 'BAD_REQUEST')
  await lead.bad('bridge_trace', { trace_id: 'xyz' }, 'BAD_REQUEST')
  await lead.bad('bridge_whoami', { x: 1 }, 'BAD_REQUEST')
})

assert.deepEqual([...used].sort(), tools, 'a tool was not used')
assert.deepEqual([...refused].sort(), tools, 'a tool was given no bad input')
await lead.client.close()
await peer.client.close()
console.log(`${how}: ${tools.length} tools, all well`)
