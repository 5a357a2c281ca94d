// What the pages do with a script: they stay up to date, count times on, copy, and listen to keys. Without it they work
// all the same.
const all = (what, from = document) => [...from.querySelectorAll(what)]
const one = what => document.querySelector(what)
const root = document.documentElement, body = document.body
root.classList.add('js')

const keep = (name, value) => { try { localStorage.setItem('joblock-' + name, value) } catch { /* private windows */ } }
const kept = name => { try { return localStorage.getItem('joblock-' + name) } catch { return null } }

// Times. The store's clock counts, and the browser's may be wrong.
let ahead = Number(body.dataset.now) - Date.now()
const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']]
function length(seconds) {
  const s = Math.max(0, Math.floor(seconds))
  for (let i = 0; i < 3; i++) {
    const [of, name] = units[i], [small, less] = units[i + 1]
    if (s < of) continue
    const rest = Math.floor(s % of / small)
    return Math.floor(s / of) + ' ' + name + (rest ? ' ' + rest + ' ' + less : '')
  }
  return s + ' s'
}
function words(kind, at) {
  const d = (Date.now() + ahead - at) / 1000
  if (kind === 'ago') return length(d) + ' ago'
  if (kind === 'for') return length(d)
  if (kind === 'left') return length(-d)
  return -d > 0 ? 'in ' + length(-d) : 'now'
}
function count() {
  for (const t of all('time[data-t]')) {
    if (t.dataset.t === 'at') continue
    const text = words(t.dataset.t, Date.parse(t.dateTime))
    if (t.textContent !== text) t.textContent = text
  }
}
setInterval(() => { if (!document.hidden) count() }, 1000)
addEventListener('mouseover', e => {
  const t = e.target.closest?.('time')
  if (t && !t.dataset.z) t.dataset.z = t.title += '\n' + new Date(t.dateTime).toLocaleString(undefined, { timeZoneName: 'short' })
})

// Parts of the page are changed by their ids. Only what is different is touched: rows stay where they are, and so do the
// focus and what the user has selected. The result says whether anything but a time has changed.
function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh)
    return true
  }
  if (old.nodeType === Node.TEXT_NODE) {
    const same = old.data === fresh.data
    if (!same) old.data = fresh.data
    return !same
  }
  let changed = false
  const isTime = old.nodeName === 'TIME'
  for (const { name, value } of fresh.attributes || []) {
    if (old.getAttribute(name) === value) continue
    changed ||= !isTime && name !== 'class'
    old.setAttribute(name, value)
  }
  for (const { name } of [...old.attributes || []]) if (!fresh.hasAttribute(name)) old.removeAttribute(name)
  const now = [...fresh.childNodes], ids = new Set(now.map(node => node.id))
  for (const gone of [...old.children]) if (gone.id && !ids.has(gone.id)) { gone.remove(); changed = true }
  now.forEach((node, i) => {
    let was = old.childNodes[i]
    if (node.id && was?.id !== node.id) {
      const same = [...old.children].find(row => row.id === node.id)
      old.insertBefore(same || node, was || null)
      changed = true
      if (!same) return
      was = same
    }
    if (was) changed = (morph(was, node) && !isTime) || changed
    else { old.append(node); changed = true }
  })
  while (old.childNodes.length > now.length) { old.lastChild.remove(); changed = true }
  return changed
}
let quiet = true // the first message brings what is there already
function put(id, html) {
  const old = document.getElementById(id)
  if (!old) return
  const box = document.createElement('template')
  box.innerHTML = html
  const fresh = box.content.firstElementChild
  const lead = old.querySelector('.lead .state')?.textContent
  if (!fresh || !morph(old, fresh) || quiet) return
  const now = document.getElementById(id)
  if (now.matches('tr')) {
    now.classList.remove('changed')
    void now.offsetWidth // restarts the animation
    now.classList.add('changed')
  }
  const state = now.querySelector('.lead .state')?.textContent
  if (state !== lead) say(state)
}
const say = text => { one('#say').textContent = text || '' }

// The stream. Where there is none, the page asks for itself, less and less often while no answer comes.
const url = body.dataset.live
const bar = one('#live'), state = one('#liveness'), every = one('#every'), pause = one('#pause')
let source, timer, failed = 0, since = 0, hidden = 0
const paused = () => pause.getAttribute('aria-pressed') === 'true'
function status(text, good) {
  state.textContent = text
  bar.classList.toggle('bad', !good)
}
function stop() {
  source?.close()
  clearTimeout(timer)
  source = null
}
function start() {
  stop()
  if (paused() || document.hidden) return status('stopped', true)
  quiet = true
  source = new EventSource(url + '&every=' + every.value)
  source.onopen = () => { failed = since = 0; status('live', true) }
  source.onmessage = e => {
    const m = JSON.parse(e.data)
    ahead = m.now - Date.now()
    for (const p of m.parts) put(p.id, p.html)
    quiet = false
    count()
  }
  source.onerror = () => {
    since ||= Date.now()
    if (source.readyState === EventSource.CLOSED) return later()
    if (Date.now() - since > 3000) status('no answer for ' + length((Date.now() - since) / 1000), false)
  }
}
function later() {
  stop()
  status('asking', false)
  timer = setTimeout(ask, Math.min(60, 2 ** ++failed) * 1000)
}
async function ask(whole) {
  try {
    const r = await fetch(location.href, { signal: AbortSignal.timeout(10000) })
    if (r.redirected || r.status === 401) return location.reload()
    const page = new DOMParser().parseFromString(await r.text(), 'text/html')
    const main = page.querySelector('main')
    ahead = Number(page.body.dataset.now) - Date.now()
    if (whole === true && r.ok && !one('main').contains(document.activeElement?.closest('input,select'))) {
      one('main').replaceChildren(...main.childNodes)
    } else {
      for (const part of all('[id]', main)) if (!part.matches('input,select,button')) put(part.id, part.outerHTML)
    }
    const banner = page.querySelector('#banner')
    if (banner) put('banner', banner.outerHTML)
    count()
    if (r.ok) return start()
  } catch { /* no answer */ }
  later()
}
if (url && bar) {
  bar.hidden = false
  every.value = kept('every') || '1'
  if (!every.value) every.value = '1'
  pause.setAttribute('aria-pressed', kept('paused') === 'true')
  every.onchange = () => { keep('every', every.value); start() }
  pause.onclick = () => {
    pause.setAttribute('aria-pressed', !paused())
    keep('paused', paused())
    start()
  }
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) { hidden = Date.now(); return stop() }
    if (paused()) return
    Date.now() - hidden > 10000 ? ask(true) : start()
  })
  addEventListener('pagehide', stop)
  addEventListener('pageshow', e => { if (e.persisted) ask(true) })
  start()
}

// Copying. Over plain HTTP browsers have no clipboard, but still the old command.
document.addEventListener('click', async e => {
  const b = e.target.closest('.copy')
  if (!b) return
  try {
    await navigator.clipboard.writeText(b.dataset.copy)
  } catch {
    const t = document.createElement('textarea')
    t.value = b.dataset.copy
    t.className = 'vh'
    body.append(t)
    t.select()
    document.execCommand('copy')
    t.remove()
    b.focus()
  }
  b.textContent = 'copied'
  say('copied')
  setTimeout(() => { b.textContent = 'copy' }, 1500)
})

// On a narrow screen the navigation scrolls: where one is is in sight, and an edge behind which there is more is faint.
const nav = one('nav')
if (nav) {
  const here = one('nav [aria-current]')
  const edges = () => {
    nav.classList.toggle('left', nav.scrollLeft > 1)
    nav.classList.toggle('right', nav.scrollLeft + nav.clientWidth < nav.scrollWidth - 1)
  }
  if (here) nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2
  nav.addEventListener('scroll', edges, { passive: true })
  addEventListener('resize', edges)
  edges()
}

// What must be typed must be typed before the button works. The server looks too.
for (const field of all('input[data-typed]')) {
  const button = field.form.querySelector('button:not(.copy)')
  const check = () => { button.disabled = field.value !== field.dataset.typed }
  field.addEventListener('input', check)
  check()
}

// Keys.
const pages = { o: './', l: 'locks', j: 'jobs', s: 'sequences', i: 'limits', c: 'cron', e: 'events', n: 'nodes', d: 'doctor', a: 'audit', h: 'help' }
let went = false
document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return
  const typing = e.target.closest('input:not([type=checkbox],[type=radio]),select,textarea')
  if (e.key === 'Escape' && typing) return typing.blur()
  if (typing) return
  const rows = all('tr.row')
  if (went && pages[e.key]) { went = false; location.href = pages[e.key]; return }
  went = e.key === 'g'
  if (e.key === '/' && one('[data-search]')) {
    e.preventDefault()
    one('[data-search]').select()
  } else if (e.key === '?') location.href = 'help#keys'
  else if (e.key === 'p' && bar && !bar.hidden) pause.click()
  else if ((e.key === 'j' || e.key === 'k') && rows.length) {
    const at = rows.findIndex(r => r.contains(document.activeElement))
    const next = at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + (e.key === 'j' ? 1 : -1)))
    rows[next].querySelector('a')?.focus()
  }
})
