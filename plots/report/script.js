'use strict';
(() => {
const root = document.documentElement;
root.classList.add('js');

// ---- words and numbers

function bytes(n) {
  const a = Math.abs(n);
  for (const [u, s] of [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]])
    if (a >= s) return String(+(n / s).toFixed(2)) + ' ' + u;
  return n + ' B';
}
function duration(us) {
  if (us >= 1e6) return (us / 1e6).toFixed(3) + ' s';
  if (us >= 1e3) return (us / 1e3).toFixed(2) + ' ms';
  return Math.round(us) + ' µs';
}
const count = n => Math.round(n).toLocaleString('en');

// ---- streams of varints (see encode.go)

function varints(b64) {
  const s = atob(b64 || ''), out = [];
  let v = 0, m = 1;
  for (let i = 0; i < s.length; i++) {
    const c = s.charCodeAt(i);
    v += (c & 127) * m;
    if (c & 128) m *= 128;
    else { out.push(v); v = 0; m = 1; }
  }
  return out;
}
const signed = a => a.map(v => v % 2 ? -(v + 1) / 2 : v / 2);
function summed(a) {
  let t = 0;
  return a.map(v => t += v);
}
const UNIT = 512;

// ---- copying and sorting tables

function copy(text, button) {
  const done = ok => {
    const was = button.textContent;
    button.textContent = ok ? 'Copied' : 'Could not copy';
    setTimeout(() => { button.textContent = was; }, 1500);
  };
  const byHand = () => {
    const t = document.createElement('textarea');
    t.value = text;
    t.style.position = 'fixed';
    t.style.opacity = '0';
    document.body.append(t);
    t.select();
    let ok = false;
    try { ok = document.execCommand('copy'); } catch (e) { ok = false; }
    t.remove();
    button.focus();
    done(ok);
  };
  if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(() => done(true), byHand);
  else byHand();
}
function tsv(table) {
  const clean = s => s.replace(/[\t\r\n]+/g, ' ').trim();
  return [...table.rows].map(r => [...r.cells].map(c => c.dataset.v || clean(c.dataset.name || c.textContent)).join('\t')).join('\n') + '\n';
}
for (const b of document.querySelectorAll('[data-copy]'))
  b.addEventListener('click', () => {
    const e = document.getElementById(b.dataset.copy);
    copy(e.tagName === 'TABLE' ? tsv(e) : e.textContent, b);
  });
for (const table of document.querySelectorAll('table')) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((th, k) => {
    if (!th.textContent) return;
    th.dataset.name = th.textContent;
    const b = document.createElement('button');
    b.type = 'button';
    b.textContent = th.textContent;
    b.title = 'Sort by ' + th.textContent;
    th.textContent = '';
    th.append(b);
    b.addEventListener('click', () => {
      const up = th.getAttribute('aria-sort') !== (th.classList.contains('n') ? 'descending' : 'ascending');
      const ascending = th.classList.contains('n') ? !up : up;
      for (const h of heads) h.removeAttribute('aria-sort');
      th.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
      const value = r => {
        const c = r.cells[k];
        return c.dataset.v === undefined ? c.textContent : +c.dataset.v;
      };
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const x = value(a), y = value(b);
        let d;
        if (typeof x === 'number' && typeof y === 'number') d = x - y;
        else if (typeof x !== typeof y) return typeof x === 'number' ? -1 : 1; // what has no number comes last
        else d = x < y ? -1 : x > y ? 1 : 0;
        return ascending ? d : -d;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

// ---- charts

const STEPS = [0.25, 0.5, 1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1024];
function byteTicks(low, high, n) {
  let u = 'B', s = 1;
  for (const [name, size] of [['KiB', 2 ** 10], ['MiB', 2 ** 20], ['GiB', 2 ** 30], ['TiB', 2 ** 40]])
    if (high - low >= 2 * size || high - low >= size / 2 && high >= 2 * size) [u, s] = [name, size];
  let step = 0;
  for (const k of STEPS) {
    step = k * s;
    if ((high - low) / step <= n) break;
  }
  const out = [];
  for (let k = Math.ceil(low / step); k * step <= high && out.length < 100; k++) out.push([k * step, +(k * step / s).toFixed(3)]);
  return { unit: u, ticks: out };
}
function decimalTicks(low, high, n, whole) {
  const raw = (high - low) / n, p = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].map(c => c * p).find(s => s >= raw * 0.999999) || 10 * p;
  if (whole) step = Math.max(1, Math.round(step));
  const out = [];
  for (let k = Math.ceil(low / step); k * step <= high && out.length < 100; k++) out.push(k * step);
  return { step, ticks: out };
}
const LIVES = [0.01, 0.1, 0.5, Infinity];
const LEFT = 62, RIGHT = 10, TOP = 14, BOTTOM = 40;

function setUp(box) {
  const data = JSON.parse(document.getElementById(box.dataset.trace + '-data').textContent);
  const n = data.events;
  let times = null;
  if (data.clock) {
    times = summed(varints(data.time));
    times.push(data.duration);
  }
  const start = summed(varints(data.start)), life = varints(data.life), request = varints(data.request), site = varints(data.site);
  const decoded = [];
  function policy(k) {
    if (decoded[k]) return decoded[k];
    const p = data.policies[k], d = { raw: p };
    for (const name in p.curves) d[name] = summed(signed(varints(p.curves[name])));
    d.offset = varints(p.offset);
    d.charge = signed(varints(p.charge));
    const rects = s => {
      const v = varints(s), out = [];
      let x = 0;
      for (let i = 0; i + 3 < v.length; i += 4) {
        x += v[i];
        out.push([x, x + v[i + 1], v[i + 2] * UNIT, v[i + 3] * UNIT]);
      }
      return out;
    };
    d.segments = rects(p.segments);
    d.cached = rects(p.cached);
    return decoded[k] = d;
  }

  const q = s => box.querySelector(s);
  const charts = { timeline: q('.chart.timeline'), map: q('.chart.map') };
  const tip = q('.tip'), live = q('.live');
  const state = { policy: 0, axis: data.clock ? 'time' : 'event', x0: 0, x1: 1, y0: 0, y1: 1 };
  const span = () => state.axis === 'time' ? data.duration : n;
  const pos = e => state.axis === 'time' ? times[Math.min(e, n)] : e;
  // The event at a place on the axis.
  function eventAt(x) {
    if (state.axis !== 'time') return Math.max(0, Math.min(n - 1, Math.floor(x)));
    let lo = 0, hi = n;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (times[mid] <= x) lo = mid + 1;
      else hi = mid;
    }
    return Math.max(0, lo - 1);
  }
  const showAt = x => state.axis === 'time' ? duration(x) : 'event ' + count(x);
  const top = Math.max(...data.policies.map(p => p.top), data.bound) * 1.06 || 1;
  const near = data.policies.map(p => p.limit).filter(l => l > 0 && l < 3 * top);
  const highest = Math.max(top, ...near.map(l => l * 1.06));
  const tallest = Math.max(...data.policies.map(p => p.height), 1);

  let colours = {};
  function readColours() {
    const cs = getComputedStyle(root);
    colours = {};
    for (const c of ['bg', 'text', 'muted', 'line', 'reserved', 'allocated', 'slack', 'live', 'limit', 'bound', 'alarm', 'retry', 'stranded', 'cached', 'grid', 'life0', 'life1', 'life2', 'life3'])
      colours[c] = cs.getPropertyValue('--' + c).trim();
  }

  function prepare(canvas) {
    const r = canvas.parentElement.getBoundingClientRect(), d = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(r.width * d));
    canvas.height = Math.max(1, Math.round(r.height * d));
    const c = canvas.getContext('2d');
    c.setTransform(d, 0, 0, d, 0, 0);
    c.clearRect(0, 0, r.width, r.height);
    return [c, r.width, r.height];
  }
  // Places of a chart: what the axes show, and where that is.
  function frame(w, h, y0, y1) {
    const s = span(), a = state.x0 * s, b = state.x1 * s;
    return {
      w, h, a, b, y0, y1,
      X: v => LEFT + (v - a) / (b - a) * (w - LEFT - RIGHT),
      Y: v => h - BOTTOM - (v - y0) / (y1 - y0) * (h - BOTTOM - TOP),
      x: px => a + (px - LEFT) / (w - LEFT - RIGHT) * (b - a),
      y: py => y0 + (h - BOTTOM - py) / (h - BOTTOM - TOP) * (y1 - y0),
    };
  }
  function axes(c, f, label, lines) {
    c.font = '13px system-ui, "Liberation Sans", Arial, sans-serif';
    c.lineWidth = 1;
    const yt = byteTicks(f.y0, f.y1, Math.max(2, Math.floor((f.h - BOTTOM - TOP) / 36)));
    c.textAlign = 'right';
    c.textBaseline = 'middle';
    for (const [v, t] of yt.ticks) {
      const y = Math.round(f.Y(v)) + 0.5;
      c.strokeStyle = lines ? colours.grid : colours.muted;
      c.beginPath(); c.moveTo(LEFT - 4, y); c.lineTo(lines ? f.w - RIGHT : LEFT, y); c.stroke();
      c.fillStyle = colours.text;
      c.fillText(t, LEFT - 6, y);
    }
    c.save();
    c.translate(13, (TOP + f.h - BOTTOM) / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = 'center';
    c.fillText(label + ' (' + yt.unit + ')', 0, 0);
    c.restore();
    c.textAlign = 'center';
    c.textBaseline = 'top';
    const room = Math.max(2, Math.floor((f.w - LEFT - RIGHT) / 95));
    let name = 'Event', scale = 1;
    if (state.axis === 'time') {
      const w = f.b - f.a;
      [name, scale] = f.b >= 2e6 && w >= 2e4 ? ['Time (s)', 1e6] : f.b >= 2e3 ? ['Time (ms)', 1e3] : ['Time (µs)', 1];
    }
    const xt = decimalTicks(f.a / scale, f.b / scale, room, state.axis !== 'time');
    for (const v of xt.ticks) {
      const x = Math.round(f.X(v * scale)) + 0.5;
      c.strokeStyle = colours.muted;
      c.beginPath(); c.moveTo(x, f.h - BOTTOM); c.lineTo(x, f.h - BOTTOM + 4); c.stroke();
      const t = state.axis === 'time' ? String(+v.toFixed(6)) : count(v);
      const half = c.measureText(t).width / 2;
      c.fillText(t, Math.min(x, f.w - half - 1), f.h - BOTTOM + 6);
    }
    c.fillText(name, (LEFT + f.w - RIGHT) / 2, f.h - 17);
    c.strokeStyle = colours.muted;
    c.beginPath(); c.moveTo(LEFT + 0.5, TOP); c.lineTo(LEFT + 0.5, f.h - BOTTOM + 0.5); c.lineTo(f.w - RIGHT, f.h - BOTTOM + 0.5); c.stroke();
  }
  function clip(c, f) {
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP - 12, f.w - LEFT - RIGHT, f.h - BOTTOM - TOP + 12);
    c.clip();
  }

  // A curve's columns that are in sight, as steps that keep peaks.
  function trace(c, f, d, name, area) {
    const low = d[name + 'Min'], high = d[name + 'Max'], last = d[name + 'Last'], m = high.length;
    const at = i => pos(Math.ceil(i * n / m));
    let i = 0;
    if (state.x0 > 0) { // the first column in sight, and one before
      let lo = 0, hi = m;
      while (lo < hi) { const mid = (lo + hi) >> 1; if (at(mid) < f.a) lo = mid + 1; else hi = mid; }
      i = Math.max(0, lo - 1);
    }
    c.beginPath();
    let y = f.Y(0), x = 0, first = true;
    for (; i < m; i++) {
      x = f.X(at(i));
      if (first) { c.moveTo(x, area ? f.Y(0) : f.Y(last[i] * UNIT)); first = false; }
      else c.lineTo(x, y);
      if (low[i] !== high[i] && !area) { c.lineTo(x, f.Y(high[i] * UNIT)); c.lineTo(x, f.Y(low[i] * UNIT)); }
      else if (area) c.lineTo(x, f.Y(high[i] * UNIT));
      y = f.Y(last[i] * UNIT);
      c.lineTo(x, y);
      if (x > f.w) break;
    }
    const end = Math.min(f.X(span()), f.w + 10);
    c.lineTo(end, y);
    if (area) { c.lineTo(end, f.Y(0)); c.closePath(); c.fill(); }
    else c.stroke();
  }
  function level(c, f, v, colour, dash) {
    c.strokeStyle = colour;
    c.lineWidth = 1.5;
    c.setLineDash(dash);
    c.beginPath(); c.moveTo(LEFT, f.Y(v)); c.lineTo(f.w - RIGHT, f.Y(v)); c.stroke();
    c.setLineDash([]);
  }
  let frames = {};
  function drawTimeline() {
    const [c, w, h] = prepare(charts.timeline.querySelector('.base'));
    const f = frames.timeline = frame(w, h, 0, highest), d = policy(state.policy), p = d.raw;
    clip(c, f);
    c.fillStyle = colours.slack; trace(c, f, d, 'reserved', true);
    c.fillStyle = colours.live; trace(c, f, d, 'allocated', true);
    c.restore();
    axes(c, f, 'Memory', true);
    clip(c, f);
    if (p.limit > 0) level(c, f, p.limit, colours.limit, [9, 3, 2, 3]);
    level(c, f, data.bound, colours.bound, [2, 3]);
    c.lineWidth = 1;
    if (state.policy !== 0) {
      c.strokeStyle = colours.reserved;
      c.setLineDash([5, 4]);
      trace(c, f, policy(0), 'reserved', false);
      c.setLineDash([]);
    }
    c.lineWidth = 2;
    c.strokeStyle = colours.reserved; trace(c, f, d, 'reserved', false);
    c.lineWidth = 1;
    c.strokeStyle = colours.allocated; trace(c, f, d, 'allocated', false);
    c.textAlign = 'center';
    c.textBaseline = 'middle';
    for (const [list, colour, sign, y] of [[p.retries, colours.retry, '▲', TOP + 8], [p.ooms, colours.alarm, '✕', TOP - 4]]) {
      let lastX = -99;
      c.fillStyle = colour;
      c.font = 'bold 13px system-ui, sans-serif';
      for (const e of list) {
        const x = f.X(pos(e));
        if (x - lastX < 6) continue;
        lastX = x;
        c.fillText(sign, x, y);
        c.globalAlpha = 0.5;
        c.fillRect(x - 0.5, TOP, 1, h - BOTTOM - TOP);
        c.globalAlpha = 1;
      }
    }
    c.restore();
  }
  function drawMap() {
    const [c, w, h] = prepare(charts.map.querySelector('.base'));
    const f = frames.map = frame(w, h, state.y0 * tallest, state.y1 * tallest), d = policy(state.policy), s = span();
    // Colours add up by the share of a pixel that they cover, as in package
    // plots: however small, nothing vanishes, and nothing shows between
    // neighbours. Stranded space counts threefold where it is less than a pixel.
    const ratio = c.getTransform().a;
    const left = Math.round(LEFT * ratio), up = Math.round(TOP * ratio);
    const W = Math.round((w - RIGHT) * ratio) - left, H = Math.round((h - BOTTOM) * ratio) - up;
    if (W < 1 || H < 1) return;
    const free = new Float32Array(W * H), pix = new Float32Array(W * H * 3);
    const rgb = name => { const v = parseInt(colours[name].slice(1), 16); return [v >> 16, v >> 8 & 255, v & 255]; };
    const bg = rgb('bg'), stranded = rgb('stranded');
    const paint = (e0, e1, off, size, sign, to) => {
      const a = pos(e0), b = pos(e1);
      if (b < f.a || a > f.b || off + size < f.y0 || off > f.y1) return false;
      const x0 = Math.max(0, f.X(a) * ratio - left), x1 = Math.min(W, f.X(b) * ratio - left);
      const y0 = Math.max(0, f.Y(off + size) * ratio - up), y1 = Math.min(H, f.Y(off) * ratio - up);
      const dr = to ? to[0] - bg[0] : 0, dg = to ? to[1] - bg[1] : 0, db = to ? to[2] - bg[2] : 0;
      for (let y = Math.floor(y0); y < y1; y++) {
        const sy = Math.min(y1, y + 1) - Math.max(y0, y);
        for (let x = Math.floor(x0); x < x1; x++) {
          const share = sy * (Math.min(x1, x + 1) - Math.max(x0, x)), at = y * W + x;
          free[at] += sign * share;
          if (to) { pix[3 * at] += share * dr; pix[3 * at + 1] += share * dg; pix[3 * at + 2] += share * db; }
        }
      }
      return x1 - x0 > 4 * ratio && y1 - y0 > 4 * ratio;
    };
    for (const r of d.segments) paint(r[0], r[1], r[2], r[3], 1, null);
    const cached = rgb('cached'), lifeColours = LIVES.map((_, k) => rgb('life' + k)), edges = [];
    for (const r of d.cached) paint(r[0], r[1], r[2], r[3], -1, cached);
    for (let i = 0; i < start.length; i++) {
      if (d.offset[i] === 0) continue;
      const end = start[i] + life[i], share = (pos(end) - pos(start[i])) / s;
      if (paint(start[i], end, (d.offset[i] - 1) * UNIT, charged(d, i), -1, lifeColours[LIVES.findIndex(l => share < l)])) edges.push(i);
    }
    const img = c.createImageData(W, H);
    for (let at = 0; at < W * H; at++) {
      const part = Math.min(1, Math.max(0, free[at])), shown = part > 0 ? Math.min(3 * part, Math.max(part, 0.6)) : 0;
      for (let k = 0; k < 3; k++) {
        let rest = bg[k] + pix[3 * at + k];
        if (part < 1) rest = (rest - part * bg[k]) / (1 - part);
        img.data[4 * at + k] = rest * (1 - shown) + stranded[k] * shown + 0.5;
      }
      img.data[4 * at + 3] = 255;
    }
    c.putImageData(img, left, up);
    clip(c, f);
    c.strokeStyle = colours.bg;
    c.lineWidth = 0.6;
    for (const i of edges) {
      const x = f.X(pos(start[i])), x2 = f.X(pos(start[i] + life[i])), y = f.Y((d.offset[i] - 1) * UNIT + charged(d, i)), y2 = f.Y((d.offset[i] - 1) * UNIT);
      c.strokeRect(x, y, x2 - x, y2 - y);
    }
    c.restore();
    axes(c, f, 'Address, compact', false);
  }
  const charged = (d, i) => (Math.ceil(request[i] / UNIT) + d.charge[i]) * UNIT;

  let waiting = false;
  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      readColours();
      drawTimeline();
      drawMap();
      clearOver();
      const p = data.policies[state.policy];
      q('.figures').textContent = box.querySelector(`input[name="${box.dataset.trace}-policy"][value="${state.policy}"]`).dataset.figures;
      q('.if-compared').hidden = state.policy === 0;
      q('.if-limit').hidden = !(p.limit > 0 && p.limit <= highest);
      q('.if-oom').hidden = !p.ooms.length;
      q('.if-retry').hidden = !p.retries.length;
      box.dataset.drawn = +(box.dataset.drawn || 0) + 1;
    });
  }

  // ---- what is under the pointer

  function clearOver() {
    for (const k in charts) prepare(charts[k].querySelector('.over'));
    tip.hidden = true;
  }
  function memoryAt(e) {
    const d = policy(state.policy), m = d.reservedMax.length, i = Math.min(m - 1, Math.floor(e * m / n));
    const range = name => {
      const a = d[name + 'Min'][i] * UNIT, b = d[name + 'Max'][i] * UNIT;
      return a === b ? bytes(a) : bytes(a) + ' to ' + bytes(b);
    };
    return `reserved ${range('reserved')}\nallocated ${range('allocated')}`;
  }
  function blockAt(x, y) {
    const d = policy(state.policy);
    for (let i = start.length - 1; i >= 0; i--) {
      if (d.offset[i] === 0) continue;
      const off = (d.offset[i] - 1) * UNIT;
      if (y < off || y >= off + charged(d, i)) continue;
      if (x >= pos(start[i]) && x < Math.max(pos(start[i] + life[i]), pos(start[i]) + 1e-9)) return i;
    }
    return -1;
  }
  function describe(name, x, y) {
    const e = eventAt(x);
    if (name === 'timeline') return { text: showAt(x) + '\n' + memoryAt(e) };
    const i = blockAt(x, y), d = policy(state.policy);
    if (i >= 0) {
      const off = (d.offset[i] - 1) * UNIT, size = charged(d, i), a = start[i], b = start[i] + life[i];
      let t = 'block of ' + bytes(size);
      if (size !== request[i]) t += ' (asked for: ' + bytes(request[i]) + ')';
      t += `\nfrom ${showAt(pos(a))} to ${b >= n ? 'the end' : showAt(pos(b))}`;
      t += `, lives for ${state.axis === 'time' ? duration(pos(b) - pos(a)) + ', ' : ''}${count(life[i])} events`;
      t += '\n' + (data.sites[site[i]] || 'call site not recorded');
      return { text: t, box: [a, b, off, size] };
    }
    const inside = list => list.find(r => x >= pos(r[0]) && x < pos(r[1]) && y >= r[2] && y < r[2] + r[3]);
    const idle = inside(d.cached), seg = inside(d.segments);
    if (idle) return { text: `cached: ${bytes(idle[3])} that could be given back\nat ${showAt(x)}`, box: idle };
    if (seg) return { text: `stranded: free, but something else keeps the segment of ${bytes(seg[3])}\nat ${showAt(x)}` };
    return { text: `not reserved\nat ${showAt(x)}` };
  }
  function point(name, px, py, speak) {
    const chart = charts[name], f = frames[name];
    clearOver();
    if (!f || px < LEFT || px > f.w - RIGHT || py < TOP || py > f.h - BOTTOM) return;
    const x = f.x(px), y = f.y(py);
    for (const k in charts) { // one line through both charts
      const [c, , h] = prepare(charts[k].querySelector('.over'));
      c.strokeStyle = colours.text;
      c.globalAlpha = 0.6;
      c.beginPath(); c.moveTo(px, TOP); c.lineTo(px, h - BOTTOM); c.stroke();
      c.globalAlpha = 1;
    }
    const what = describe(name, x, y);
    if (what.box) {
      const c = chart.querySelector('.over').getContext('2d'), [a, b, off, size] = what.box;
      c.strokeStyle = colours.alarm;
      c.lineWidth = 2;
      c.save();
      c.beginPath(); c.rect(LEFT, TOP, f.w - LEFT - RIGHT, f.h - BOTTOM - TOP); c.clip();
      c.strokeRect(f.X(pos(a)), f.Y(off + size), Math.max(f.X(pos(b)) - f.X(pos(a)), 1), Math.max(f.Y(off) - f.Y(off + size), 1));
      c.restore();
    }
    tip.textContent = what.text;
    tip.hidden = false;
    const w = tip.offsetWidth, room = box.clientWidth;
    let left = chart.offsetLeft + px + 14;
    if (left + w > room) left = Math.max(0, chart.offsetLeft + px - w - 14);
    tip.style.left = left + 'px';
    tip.style.top = chart.offsetTop + py + 14 + 'px';
    if (speak) live.textContent = what.text;
  }

  // ---- zoom

  function zoomTo(x0, x1, y0, y1) {
    const least = Math.min(1, Math.max(1e-6, 4 / Math.max(n, 1)));
    if (x1 - x0 < least) { const m = (x0 + x1) / 2; x0 = m - least / 2; x1 = m + least / 2; }
    const fit = (a, b) => {
      if (b - a >= 1) return [0, 1];
      if (a < 0) return [0, b - a];
      if (b > 1) return [1 - (b - a), 1];
      return [a, b];
    };
    [state.x0, state.x1] = fit(x0, x1);
    if (y0 !== undefined) {
      if (y1 - y0 < 1e-5) { const m = (y0 + y1) / 2; y0 = m - 5e-6; y1 = m + 5e-6; }
      [state.y0, state.y1] = fit(y0, y1);
    }
    draw();
  }
  const zoomBy = (k, cx, cy) => {
    const w = state.x1 - state.x0, c = cx === undefined ? 0.5 : cx, at = state.x0 + w * c;
    if (cy === undefined) return zoomTo(at - w * k * c, at + w * k * (1 - c));
    const h = state.y1 - state.y0, m = state.y0 + h * cy;
    zoomTo(at - w * k * c, at + w * k * (1 - c), m - h * k * cy, m + h * k * (1 - cy));
  };
  const move = by => { const w = state.x1 - state.x0; zoomTo(state.x0 + by * w, state.x1 + by * w); };
  const reset = () => zoomTo(0, 1, 0, 1);
  for (const b of box.querySelectorAll('[data-do]'))
    b.addEventListener('click', () => ({ in: () => zoomBy(0.5), out: () => zoomBy(2), left: () => move(-0.25), right: () => move(0.25), reset })[b.dataset.do]());

  for (const name in charts) {
    const el = charts[name];
    const place = e => { const r = el.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
    let drag = null, cursor = null;
    el.addEventListener('pointerdown', e => {
      if (e.button !== 0 || e.pointerType === 'touch') return;
      drag = place(e);
      el.setPointerCapture(e.pointerId);
    });
    el.addEventListener('pointermove', e => {
      const [px, py] = place(e);
      cursor = [px, py];
      if (!drag) { point(name, px, py); return; }
      clearOver();
      const c = el.querySelector('.over').getContext('2d'), f = frames[name];
      c.strokeStyle = colours.text;
      c.setLineDash([4, 3]);
      if (name === 'map') c.strokeRect(drag[0], drag[1], px - drag[0], py - drag[1]);
      else c.strokeRect(drag[0], TOP, px - drag[0], f.h - BOTTOM - TOP);
      c.setLineDash([]);
    });
    el.addEventListener('pointerup', e => {
      if (!drag) return;
      const [px, py] = place(e), [qx, qy] = drag, f = frames[name], s = span();
      drag = null;
      if (Math.abs(px - qx) < 5) { point(name, px, py); return; }
      const x0 = f.x(Math.min(px, qx)) / s, x1 = f.x(Math.max(px, qx)) / s;
      if (name === 'map' && Math.abs(py - qy) >= 5) zoomTo(x0, x1, f.y(Math.max(py, qy)) / tallest, f.y(Math.min(py, qy)) / tallest);
      else zoomTo(x0, x1);
    });
    el.addEventListener('pointercancel', () => { drag = null; clearOver(); });
    el.addEventListener('pointerleave', () => { if (!drag) clearOver(); });
    el.addEventListener('dblclick', reset);
    el.addEventListener('wheel', e => {
      if (e.ctrlKey || e.metaKey) return; // the browser's own zoom
      e.preventDefault();
      const f = frames[name], [px, py] = place(e);
      const cx = Math.max(0, Math.min(1, (px - LEFT) / (f.w - LEFT - RIGHT))), cy = Math.max(0, Math.min(1, (f.h - BOTTOM - py) / (f.h - BOTTOM - TOP)));
      const k = e.deltaY < 0 ? 0.8 : 1.25;
      if (name === 'map' && !e.shiftKey) zoomBy(k, cx, cy);
      else zoomBy(k, cx);
    }, { passive: false });
    el.addEventListener('keydown', e => {
      const f = frames[name];
      if (!f || e.ctrlKey || e.metaKey || e.altKey) return;
      if (!cursor) cursor = [(LEFT + f.w) / 2, (TOP + f.h - BOTTOM) / 2];
      const step = e.shiftKey ? 40 : 8, cx = (cursor[0] - LEFT) / (f.w - LEFT - RIGHT), cy = (f.h - BOTTOM - cursor[1]) / (f.h - BOTTOM - TOP);
      const zoom = k => name === 'map' ? zoomBy(k, cx, cy) : zoomBy(k, cx);
      const keys = {
        ArrowLeft: () => { cursor[0] -= step; }, ArrowRight: () => { cursor[0] += step; },
        ArrowUp: () => { cursor[1] -= step; }, ArrowDown: () => { cursor[1] += step; },
        '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), '0': reset, Escape: clearOver,
      };
      if (!keys[e.key]) return;
      e.preventDefault();
      keys[e.key]();
      cursor[0] = Math.max(LEFT, Math.min(f.w - RIGHT, cursor[0]));
      cursor[1] = Math.max(TOP, Math.min(f.h - BOTTOM, cursor[1]));
      if (e.key.startsWith('Arrow')) point(name, cursor[0], cursor[1], true);
    });
  }
  for (const i of box.querySelectorAll('input[type=radio]'))
    i.addEventListener('change', () => {
      if (i.name.endsWith('-axis')) {
        // Keep what is in sight.
        const a = eventAt(state.x0 * span()), b = eventAt(state.x1 * span()) + 1;
        state.axis = i.value;
        zoomTo(state.x0 === 0 ? 0 : pos(a) / span(), state.x1 === 1 ? 1 : pos(b) / span());
        return;
      }
      state.policy = +i.value;
      draw();
    });
  // A browser may remember what was chosen before the page was loaded again.
  for (const i of box.querySelectorAll('input[type=radio]:checked')) i.name.endsWith('-axis') ? state.axis = i.value : state.policy = +i.value;
  new ResizeObserver(draw).observe(box);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  draw();
}
for (const box of document.querySelectorAll('.interactive')) setUp(box);
})();
