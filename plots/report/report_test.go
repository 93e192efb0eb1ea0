package report

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots/internal/plotstest"
	"allocsim/traces"
)

// bundled is a recording as an input.
func bundled(t testing.TB, name string) Input {
	t.Helper()
	r := plotstest.Recording(t, "../..", name)
	return Input{Name: name, SHA256: strings.Repeat("0123456789abcdef", 4), Job: planner.Recorded(r)}
}

// made is a made-up trace as an input.
func made(t testing.TB, tr *traces.Trace) Input {
	return Input{Name: tr.Source, Job: planner.Case{Trace: tr, Policy: plotstest.Spec(t, "torch")}}
}

func write(t testing.TB, inputs ...Input) string {
	t.Helper()
	var b bytes.Buffer
	o := Options{Command: "allocsim report x", Version: "v1", Cards: gpus.All()}
	if _, err := Write(context.Background(), &b, inputs, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var markup = regexp.MustCompile(`(?s)<script.*?</script>|<style.*?</style>|<svg.*?</svg>|<[^>]*>`)

// said is the page's text outside figures and scripts.
func said(html string) string { return markup.ReplaceAllString(html, " ") }

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		inputs []string
		want   []string
	}{
		{[]string{"gnn__default"}, []string{"One line saves 3.77 GiB of GPU memory (29 %).", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "Cards that fit", "Tesla T4", "At its peak it reserves 12.87 GiB"}},
		{[]string{"oom_retry__f12"}, []string{"No setting can help: 414.04 MiB are missing.", "a request of", "memory limit is too low", "Out of memory, now"}},
		{[]string{"gnn__tight"}, []string{"out of memory"}},
		{[]string{"leak_outputs__leakpy"}, []string{"Memory that grows", "per iteration"}},
		{[]string{"gnn__default", "cuda_graph__exp"}, []string{"GPU memory of 2 traces", "gnn__default", "cuda_graph__exp"}},
	} {
		var in []Input
		for _, n := range c.inputs {
			in = append(in, bundled(t, n))
		}
		page := said(write(t, in...))
		for _, w := range c.want {
			if !strings.Contains(page, w) {
				t.Errorf("%v: the report does not say %q", c.inputs, w)
			}
		}
	}
}

// TestEveryAllocationFails: there is a verdict and no figure, unless a setting
// makes some succeed; a trace without allocations is refused.
func TestEveryAllocationFails(t *testing.T) {
	in := bundled(t, "gnn__default")
	in.Job.Machine.Capacity = 1 << 20
	page := write(t, in)
	for _, w := range []string{"No setting can help: 5.45 GiB are missing.", "Every allocation fails in 1 MiB, so there is nothing to draw."} {
		if !strings.Contains(said(page), w) {
			t.Errorf("the report does not say %q", w)
		}
	}
	if strings.Contains(page, `class="interactive"`) || strings.Contains(page, "<figure></figure>") {
		t.Error("the report has charts of nothing")
	}
	in = bundled(t, "gnn__default")
	in.Job.Machine.Capacity = 24 << 30
	in.Job.Policy = plotstest.Spec(t, "torch:per_process_memory_fraction:0.00001")
	page = write(t, in)
	if !strings.Contains(page, `class="interactive"`) || strings.Contains(page, "<figure></figure>") {
		t.Error("the report lacks the charts of the settings that work, or has empty ones")
	}
	tr, _, err := traces.NewBuilder(0).Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, inputs := range [][]Input{{made(t, tr)}, {bundled(t, "gnn__default"), made(t, tr)}} {
		if _, err := Write(context.Background(), io.Discard, inputs, Options{}); err == nil || !strings.Contains(err.Error(), "no requests") {
			t.Errorf("a trace without allocations: %v", err)
		}
	}
}

// TestSelfContained: nothing is loaded from anywhere, and the same input gives
// the same bytes.
func TestSelfContained(t *testing.T) {
	page := write(t, bundled(t, "gnn__default"))
	for _, m := range regexp.MustCompile(`(?i)(?:src|href|url)\s*[=(]\s*["']?([^"'\s>)]*)`).FindAllStringSubmatch(page, -1) {
		if u := m[1]; !strings.HasPrefix(u, "#") && !strings.HasPrefix(u, "data:") {
			t.Errorf("the page refers to %q", u)
		}
	}
	for _, bad := range []string{"fetch(", "XMLHttpRequest", "import(", "WebSocket"} {
		if strings.Contains(script, bad) {
			t.Errorf("the script has %q", bad)
		}
	}
	var b bytes.Buffer
	o := Options{Command: "allocsim report x", Version: "v1", Cards: gpus.All(), Workers: 1}
	if _, err := Write(context.Background(), &b, []Input{bundled(t, "gnn__default")}, o); err != nil {
		t.Fatal(err)
	}
	if page != b.String() {
		t.Error("the same input with another number of workers gave another report")
	}
}

// TestHostileText: what traces say never becomes markup.
func TestHostileText(t *testing.T) {
	const evil = `</script></SCRIPT><script>alert(1)</script><img src=x onerror=alert(2)>"'` + "\u2028`${alert(3)}"
	tr := *plotstest.Training(t, 3000)
	st := *tr.Stacks
	st.Frames = append([]traces.Frame(nil), st.Frames...)
	for i := range st.Frames {
		st.Frames[i] = traces.Frame{File: evil + ".py", Line: i, Function: evil}
	}
	tr.Stacks = &st
	tr.Source, tr.Notes = evil, []string{evil}
	tr.Meta.DeviceName, tr.Meta.Torch, tr.Meta.Conf, tr.Meta.ConfKnown = evil, evil, evil, true
	page := write(t, made(t, &tr))
	for _, bad := range []string{"<script>alert", "<img src=x", "onerror=alert(2)>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if n := strings.Count(strings.ToLower(page), "</script>"); n != 2 {
		t.Errorf("%d scripts end; the page has two", n)
	}
	var d interactive
	if err := json.Unmarshal([]byte(dataOf(t, page)), &struct {
		Sites *[]string `json:"sites"`
	}{&d.Sites}); err != nil {
		t.Fatal(err)
	}
	if len(d.Sites) < 2 || !strings.Contains(d.Sites[1], evil[:20]) {
		t.Errorf("the call sites are %q", d.Sites)
	}
}

// dataOf is the first trace's data.
func dataOf(t testing.TB, page string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `<script type="application/json" id="t0-data">`)
	data, _, ok2 := strings.Cut(rest, "</script>")
	if !ok || !ok2 {
		t.Fatal("the page has no data")
	}
	return data
}

// TestData: what the browser decodes are the blocks and curves of the run.
func TestData(t *testing.T) {
	in := bundled(t, "gnn__default")
	var d struct {
		Events                     int
		Start, Life, Request, Time string
		Blocks, AllBlocks          int
		Policies                   []struct {
			Name                     string
			Columns                  int
			Curves                   map[string]string
			Top, Height              int64
			Offset, Charge, Segments string
		}
	}
	if err := json.Unmarshal([]byte(dataOf(t, write(t, in))), &d); err != nil {
		t.Fatal(err)
	}
	tr := in.Job.Trace
	if d.Events != len(tr.Events) || d.Blocks != d.AllBlocks || len(d.Policies) != 2 {
		t.Fatalf("%d events, %d of %d blocks, %d policies", d.Events, d.Blocks, d.AllBlocks, len(d.Policies))
	}
	start, life, request := unsigned(t, d.Start), unsigned(t, d.Life), unsigned(t, d.Request)
	if len(start) != d.Blocks || len(life) != d.Blocks || len(request) != d.Blocks {
		t.Fatalf("%d starts, %d lives, %d sizes of %d blocks", len(start), len(life), len(request), d.Blocks)
	}
	at := int64(0)
	for k := range start {
		at += start[k]
		e := tr.Events[at]
		if e.Kind != traces.Alloc || e.Size != request[k] {
			t.Fatalf("block %d starts at event %d, which is %v", k, at, e)
		}
		if end := at + life[k]; end < int64(len(tr.Events)) && tr.Events[end].ID != e.ID {
			t.Fatalf("block %d ends at event %d, which is %v", k, end, tr.Events[end])
		}
	}
	var last int64
	for _, us := range unsigned(t, d.Time) {
		last += us
	}
	if last != tr.Duration() {
		t.Errorf("the times add up to %d µs of %d", last, tr.Duration())
	}
	p := d.Policies[0]
	high, peak := int64(0), int64(0)
	for _, x := range signedOf(unsigned(t, p.Curves["reservedMax"])) {
		high += x
		peak = max(peak, high*unit)
	}
	if peak != 13820231680 || p.Top != peak {
		t.Errorf("the reserved peak is %d, top %d", peak, p.Top)
	}
	for k, off := range unsigned(t, p.Offset) {
		if off < 1 || (off-1)*unit+request[k] > p.Height {
			t.Fatalf("block %d lies at %d of %d", k, off, p.Height)
		}
	}
}

func unsigned(t *testing.T, b64 string) []int64 {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		t.Fatal(err)
	}
	var out []int64
	for len(b) > 0 {
		x, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatal("not a varint")
		}
		out, b = append(out, int64(x)), b[n:]
	}
	return out
}

func signedOf(xs []int64) []int64 {
	for i, x := range xs {
		xs[i] = int64(uint64(x)>>1) ^ -(x & 1)
	}
	return xs
}

// TestSmallFile: the report of 100,000 events stays below 5 MB, and says what
// it leaves out of longer ones.
func TestSmallFile(t *testing.T) {
	page := write(t, made(t, plotstest.Training(t, 100_000)))
	if n := len(page); n > 5_000_000 {
		t.Errorf("%d bytes", n)
	}
	page = write(t, made(t, plotstest.Training(t, 200_000)))
	if n := len(page); n > 8_000_000 {
		t.Errorf("%d bytes for 200,000 events", n)
	}
	if s := "The zoomable map has the 60,000 blocks"; !strings.Contains(said(page), s) {
		t.Errorf("the report does not say %q", s)
	}
	if s := "the search was kept to at most"; !strings.Contains(said(page), s) {
		t.Errorf("the report does not say %q", s)
	}
}

func TestErrors(t *testing.T) {
	if _, err := Write(context.Background(), new(bytes.Buffer), nil, Options{}); err == nil {
		t.Error("a report of nothing was written")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var b bytes.Buffer
	if _, err := Write(ctx, &b, []Input{bundled(t, "gnn__default")}, Options{}); err == nil || b.Len() > 0 {
		t.Errorf("after the end: %v, %d bytes", err, b.Len())
	}
}

// BenchmarkReport is the report of 350,000 events beyond loading.
func BenchmarkReport(b *testing.B) {
	in := made(b, plotstest.Training(b, 350_000))
	for b.Loop() {
		write(b, in)
	}
}

// hostileTraining is a trace whose texts try to run scripts.
func hostileTraining(t testing.TB) *traces.Trace {
	const evil = `</script><script>window.pwned = true</script><img src=x onerror="window.pwned = true">`
	tr := *plotstest.Training(t, 3000)
	st := *tr.Stacks
	st.Frames = make([]traces.Frame, len(tr.Stacks.Frames))
	for i := range st.Frames {
		st.Frames[i] = traces.Frame{File: evil + ".py", Line: i, Function: evil}
	}
	tr.Stacks, tr.Source, tr.Notes, tr.Meta.DeviceName = &st, evil, []string{evil}, evil
	return &tr
}
