package report

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// browser is a headless Chromium with one tab and no network.
type browser struct {
	t   *testing.T
	ctx context.Context
	mu  sync.Mutex
	// requests are the addresses asked for; complaints the errors and warnings
	// of the console.
	requests, complaints []string
}

// newBrowser starts Chromium; the test is skipped when there is none.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium found in PATH; install it to test the report in a browser (Debian: apt-get install chromium)")
	}
	if testing.Short() {
		t.Skip("a browser takes long")
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.WindowSize(1200, 1000),
		// No network at all: no name resolves, and no proxy answers.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND"), chromedp.Flag("proxy-server", "127.0.0.1:1"),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-extensions", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(90*time.Second),
	)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Skipf("Chromium (%s) does not start: %v", path, err)
	}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.complaints = append(b.complaints, fmt.Sprintf("%s: %s", m.Type, m.Text))
			b.mu.Unlock()
		}
	}()
	if err := chromedp.Listen(ctx, func(ev any) {
		if e, ok := ev.(*network.EventRequestWillBeSent); ok {
			b.mu.Lock()
			b.requests = append(b.requests, e.Request.URL)
			b.mu.Unlock()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// open shows a page.
func (b *browser) open(html string) {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(html), 0o644); err != nil {
		b.t.Fatal(err)
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path)}
	b.do(chromedp.Navigate(u.String()))
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 60*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// eval evaluates JavaScript.
func eval[T any](b *browser, js string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 60*time.Second)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	if err != nil {
		b.t.Fatalf("%s: %v", js, err)
	}
	return v
}

// until waits until a JavaScript condition holds.
func (b *browser) until(js string) {
	b.t.Helper()
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		if eval[bool](b, js) {
			return
		}
	}
	b.t.Fatalf("never: %s", js)
}

// redrawn runs f and waits until the charts are drawn again.
func (b *browser) redrawn(f func()) {
	b.t.Helper()
	before := eval[string](b, `document.querySelector('.interactive').dataset.drawn || '0'`)
	f()
	b.until(fmt.Sprintf(`(document.querySelector('.interactive').dataset.drawn || '0') !== %q`, before))
}

// picture is a hash of what a chart shows.
func (b *browser) picture(chart string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`(() => { const d = document.querySelector('.chart.%s .base').toDataURL(); let h = 0; for (let i = 0; i < d.length; i++) h = (h * 31 + d.charCodeAt(i)) | 0; return d.length + ':' + h; })()`, chart))
}

// clean fails the test if the page complained or asked for anything.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		b.t.Errorf("console: %s", c)
	}
	for _, r := range b.requests {
		if !strings.HasPrefix(r, "file://") && !strings.HasPrefix(r, "data:") && r != "about:blank" {
			b.t.Errorf("the page asks for %s", r)
		}
	}
}

const shown = `(e => e && getComputedStyle(e).display !== 'none' && e.getClientRects().length > 0)`

func TestInBrowser(t *testing.T) {
	b := newBrowser(t)
	b.open(write(t, bundled(t, "resnet50_amp__pystack")))
	b.until(`document.querySelector('.interactive').dataset.drawn >= 1`)
	if !eval[bool](b, shown+`(document.querySelector('.interactive'))`) || eval[bool](b, shown+`(document.querySelector('.static'))`) {
		t.Error("with JavaScript the interactive charts are shown and the static ones are not")
	}
	b.clean()

	t.Run("policy", func(t *testing.T) {
		line, addr := b.picture("timeline"), b.picture("map")
		figures := eval[string](b, `document.querySelector('.figures').textContent`)
		b.redrawn(func() { b.do(chromedp.Click(chromedp.CSS(`input[name="t0-policy"][value="1"]`))) })
		if b.picture("timeline") == line || b.picture("map") == addr {
			t.Error("another policy shows the same picture")
		}
		if s := eval[string](b, `document.querySelector('.figures').textContent`); s == figures || !strings.Contains(s, "peak reserved 3.02 GiB") {
			t.Errorf("the figures say %q", s)
		}
		b.redrawn(func() { b.do(chromedp.Click(chromedp.CSS(`input[name="t0-policy"][value="0"]`))) })
		if b.picture("timeline") != line || b.picture("map") != addr {
			t.Error("going back shows another picture")
		}
	})

	t.Run("zoom", func(t *testing.T) {
		line, addr := b.picture("timeline"), b.picture("map")
		b.redrawn(func() { b.do(chromedp.Click(chromedp.CSS(`[data-do="in"]`))) })
		if b.picture("timeline") == line || b.picture("map") == addr {
			t.Error("zooming in shows the same picture")
		}
		b.redrawn(func() { b.do(chromedp.Click(chromedp.CSS(`[data-do="reset"]`))) })
		if b.picture("timeline") != line || b.picture("map") != addr {
			t.Error("showing all shows another picture")
		}
		// Dragging over a part of the map zooms both ways.
		b.do(chromedp.ScrollIntoView(chromedp.CSS(".chart.map")))
		at := b.place("map", 0.3, 0.3)
		to := b.place("map", 0.6, 0.7)
		b.redrawn(func() { b.do(chromedp.DragAndDropXY(at[0], at[1], to[0], to[1])) })
		if b.picture("timeline") == line || b.picture("map") == addr {
			t.Error("dragging shows the same picture")
		}
		// Keys: 0 shows all.
		b.redrawn(func() { b.do(chromedp.Focus(chromedp.CSS(".chart.map")), chromedp.KeyEvent("0")) })
		if b.picture("map") != addr {
			t.Error("the key 0 does not show all")
		}
		b.redrawn(func() { b.do(chromedp.KeyEvent("+")) })
		if b.picture("map") == addr {
			t.Error("the key + does not zoom")
		}
		b.redrawn(func() { b.do(chromedp.KeyEvent("0")) })
	})

	t.Run("events", func(t *testing.T) {
		line := b.picture("timeline")
		b.redrawn(func() { b.do(chromedp.Click(chromedp.CSS(`input[name="t0-axis"][value="event"]`))) })
		if b.picture("timeline") == line {
			t.Error("the axis of events shows the same picture")
		}
		b.redrawn(func() { b.do(chromedp.Click(chromedp.CSS(`input[name="t0-axis"][value="time"]`))) })
	})

	t.Run("hover", func(t *testing.T) {
		b.do(chromedp.ScrollIntoView(chromedp.CSS(".chart.timeline")))
		at := b.place("timeline", 0.5, 0.5)
		b.do(chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1]))
		b.until(`!document.querySelector('.tip').hidden`)
		if s := eval[string](b, `document.querySelector('.tip').textContent`); !strings.Contains(s, "reserved ") || !strings.Contains(s, "allocated ") {
			t.Errorf("over the timeline: %q", s)
		}
		// Some place on the map has a block with a call site.
		b.do(chromedp.ScrollIntoView(chromedp.CSS(".chart.map")))
		var texts []string
		found := false
		for _, x := range []float64{0.3, 0.35, 0.5, 0.6} {
			for y := 0.05; y < 0.9 && !found; y += 0.06 {
				at := b.place("map", x, y)
				b.do(chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1]))
				s := eval[string](b, `document.querySelector('.tip').textContent`)
				texts = append(texts, s)
				found = strings.HasPrefix(s, "block of ") && strings.Contains(s, "lives for ") && strings.Contains(s, ".py:")
			}
		}
		if !found {
			t.Errorf("no block with size, lifetime and call site under the pointer: %q", texts)
		}
		// The same by keyboard, for screen readers.
		b.do(chromedp.Focus(chromedp.CSS(".chart.map")), chromedp.KeyEvent(kb.ArrowRight))
		b.until(`document.querySelector('.live').textContent !== ''`)
	})

	t.Run("tables", func(t *testing.T) {
		column := func() string {
			return eval[string](b, `[...document.querySelectorAll('#t0-top tbody tr')].map(r => r.cells[1].dataset.v).join(' ')`)
		}
		before := column()
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelectorAll('#t0-top th button')[1].click()`))
		down := column()
		b.do(chromedp.Evaluate[chromedp.Void](`document.querySelectorAll('#t0-top th button')[1].click()`))
		up := column()
		if down == up || down == before && up == before {
			t.Errorf("sorting by blocks: %q, then %q, then %q", before, down, up)
		}
		first, last, _ := strings.Cut(down, " ")
		if len(first) < len(last[strings.LastIndexByte(last, ' ')+1:]) {
			t.Errorf("not falling: %q", down)
		}
		if s := eval[string](b, `document.querySelectorAll('#t0-top th')[1].getAttribute('aria-sort')`); s != "ascending" {
			t.Errorf("aria-sort is %q", s)
		}
		// What is copied has plain numbers and no buttons.
		b.do(chromedp.Evaluate[chromedp.Void](`window.copied = ''; Object.defineProperty(navigator, 'clipboard', { value: { writeText: s => { window.copied = s; return Promise.resolve(); } }, configurable: true }); document.querySelector('[data-copy="t0-top"]').click()`))
		if s := eval[string](b, `window.copied`); !strings.HasPrefix(s, "bytes\tblocks\tlifetime\twhere\n") || strings.Contains(s, "GiB\t") || !strings.Contains(s, ".py:") {
			t.Errorf("copied: %.200q", s)
		}
	})

	t.Run("accessibility", func(t *testing.T) {
		if n := eval[int](b, `[...document.querySelectorAll('button, a[href], input, [tabindex]')].filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels && e.labels.length)).length`); n > 0 {
			t.Errorf("%d controls have no name", n)
		}
		if n := eval[int](b, `document.querySelectorAll('svg:not([aria-label])').length`); n > 0 {
			t.Errorf("%d figures have no name", n)
		}
		if n := eval[int](b, `document.querySelectorAll('h1').length`); n != 1 {
			t.Errorf("%d main headings", n)
		}
		for _, scheme := range []string{"light", "dark"} {
			if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
				t.Fatal(err)
			}
			// WCAG 2.2, 1.4.3: text has a contrast of 4.5 : 1 with what is behind it.
			low := eval[[]string](b, contrast)
			for _, l := range low {
				t.Errorf("%s: too little contrast: %s", scheme, l)
			}
		}
	})

	t.Run("narrow", func(t *testing.T) {
		b.do(chromedp.EmulateViewport(380, 800))
		if w := eval[int](b, `document.documentElement.scrollWidth`); w > 380 {
			t.Errorf("the page is %d wide on a screen of 380", w)
		}
		b.do(chromedp.EmulateViewport(1200, 1000))
	})
	b.t = t
	b.clean()
}

// contrast lists the texts whose contrast with their background is below 4.5.
const contrast = `(() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const lum = c => { const f = c.slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const out = [];
  for (const e of document.querySelectorAll('p, li, a, td, th, dt, dd, h1, h2, h3, button, legend, label, caption, summary, pre, code, strong')) {
    if (!e.getClientRects().length) continue;
    let b = e, bg = [0, 0, 0, 0];
    while (b && (bg = parse(getComputedStyle(b).backgroundColor))[3] === 0) b = b.parentElement;
    const x = lum(parse(getComputedStyle(e).color)), y = lum(bg), r = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (r < 4.5) out.push(e.tagName + ' ' + e.textContent.trim().slice(0, 30) + ': ' + r.toFixed(2));
  }
  return out.slice(0, 10);
})()`

// place is a point of a chart in the window, by shares of its width and height.
func (b *browser) place(chart string, x, y float64) [2]float64 {
	b.t.Helper()
	v := eval[[]float64](b, fmt.Sprintf(`(() => { const r = document.querySelector('.chart.%s').getBoundingClientRect(); return [r.left + r.width * %g, r.top + r.height * %g]; })()`, chart, x, y))
	return [2]float64{v[0], v[1]}
}

// TestWithoutJavaScript: everything but interaction is there.
func TestWithoutJavaScript(t *testing.T) {
	b := newBrowser(t)
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	b.open(write(t, bundled(t, "gnn__default")))
	if eval[bool](b, `document.documentElement.classList.contains('js')`) {
		t.Fatal("JavaScript ran")
	}
	if !eval[bool](b, shown+`(document.querySelector('.static svg'))`) || eval[bool](b, shown+`(document.querySelector('.interactive'))`) || eval[bool](b, shown+`(document.querySelector('.needs-js'))`) {
		t.Error("without JavaScript the static charts are shown, and nothing that needs it")
	}
	s := eval[string](b, `document.body.innerText`)
	for _, w := range []string{"One line saves 3.77 GiB", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "Cards that fit", "Who holds the memory at the peak", "What is not known", "Words"} {
		if !strings.Contains(s, w) {
			t.Errorf("the page does not say %q", w)
		}
	}
	b.clean()
}

// TestHostileInBrowser: hostile text in a trace neither runs nor breaks the
// charts.
func TestHostileInBrowser(t *testing.T) {
	b := newBrowser(t)
	tr := *hostileTraining(t)
	b.open(write(t, made(t, &tr)))
	b.until(`document.querySelector('.interactive').dataset.drawn >= 1`)
	if eval[bool](b, `window.pwned === true`) {
		t.Error("a call site ran as a script")
	}
	b.clean()
}
