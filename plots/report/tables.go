package report

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"allocsim/internal/bytesize"
	"allocsim/internal/plural"
	"allocsim/internal/text"
	"allocsim/planner"
	"allocsim/planner/words"
	"allocsim/policies"
	"allocsim/sim"
	"allocsim/traces/inspect"
)

// table is a table that the browser sorts and copies.
type table struct {
	ID, Caption string
	Heads       []head
	Rows        [][]cell
	// Note says what the table leaves out.
	Note string
}

type head struct {
	Name   string
	Number bool
}

// cell is a text and, for numbers, the value it is sorted and copied by.
type cell words.Cell

// Parts are the text in pieces between which a line may break: settings and
// paths have no spaces.
func (c cell) Parts() []string {
	return strings.FieldsFunc(breaks.Replace(c.Text), func(r rune) bool { return r == '\x00' })
}

var breaks = strings.NewReplacer(",", ",\x00", ":", ":\x00", "/", "/\x00", "\x00", "")

func (t *table) add(cells ...words.Cell) {
	row := make([]cell, len(cells))
	for i, c := range cells {
		row[i] = cell(c)
	}
	t.Rows = append(t.Rows, row)
}

// beforeAfter compares the present setting and the best one.
func beforeAfter(t *planner.Tuning) *table {
	tab := &table{ID: "before", Caption: "Before and after", Heads: []head{{"", false}, {"peak reserved", true}, {"at most", true}, {"peak allocated", true}, {"driver calls take", true}, {"retries", true}, {"OOMs", true}, {"setting", false}}}
	rows, _ := words.Settings(t, 0)
	for _, s := range rows {
		tab.add(words.Text(s.Name.Text), s.Reserved, s.AtMost, s.Allocated, s.Stall, s.Retries, s.OOMs, s.Setting)
	}
	tab.Note = words.Modelled(t)
	return tab
}

// candidates lists the settings simulated.
func candidates(t *planner.Tuning) *table {
	const most = 60
	tab := &table{ID: "settings", Caption: fmt.Sprintf("Settings simulated (%s)", text.Count(t.Searched)), Heads: []head{
		{"rank", true}, {"peak reserved", true}, {"at most", true}, {"driver calls take", true}, {"retries", true}, {"OOMs", true}, {"runs", true}, {"setting", false}}}
	rows, left := words.Settings(t, most)
	for _, s := range rows {
		tab.add(s.Name, s.Reserved, s.AtMost, s.Stall, s.Retries, s.OOMs, s.Runs, s.Setting)
	}
	var notes []string
	if left > 0 {
		notes = append(notes, fmt.Sprintf("%s left out; allocsim tune --json lists all.", plural.Of(left, "setting")))
	}
	if n := words.AtMost(t, rows); n != "" {
		notes = append(notes, n)
	}
	tab.Note = strings.Join(notes, " ")
	return tab
}

// cardTable lists cards, smallest first.
func cardTable(list []planner.CardVerdict, now, best string) *table {
	tab := &table{ID: "cards", Caption: "All cards", Heads: []head{{"card", false}, {"usable", true}, {"verdict", false}, {"headroom", true}, {"retries", true}, {"setting", false}}}
	cards, _ := words.ChosenCards(list, true)
	for _, c := range words.Cards(cards, now, best) {
		tab.add(c.Name, c.Usable, c.Verdict, c.Headroom, c.Retries, c.Setting)
	}
	return tab
}

func size(n int64) string { return bytesize.Format(n) }

// tables are those about one trace.
func (b *builder) tables(id string, i int, runs []*run, sum *inspect.Summary) []*table {
	const most = 40
	tr := b.jobs[i].Trace
	var out []*table
	compare := &table{ID: id + "-runs", Caption: "Settings compared", Heads: []head{
		{"setting", false}, {"peak reserved", true}, {"peak allocated", true}, {"peak stranded", true}, {"driver calls", true}, {"driver calls take", true}, {"retries", true}, {"OOMs", true}}}
	for _, r := range runs {
		s, d := &r.result.Stats, &r.result.Driver
		compare.add(words.Text(r.Name), words.Size(s.ReservedBytes[policies.All].Peak), words.Size(s.AllocatedBytes[policies.All].Peak), words.Size(r.frags.Stranded.Max()),
			words.Count(d.Mallocs+d.Frees+d.Maps+d.Unmaps), words.Duration(d.StallUS), words.Count(s.NumAllocRetries), words.Count(s.NumOOMs))
	}
	compare.Note = "The bound, the most bytes live at once, is " + size(b.bound(i)) + ": no placement needs less."
	out = append(out, compare)
	top := inspect.Top(tr)
	holders := &table{ID: id + "-top", Caption: "Who holds the memory at the peak (" + text.Duration(top.TimeUS) + ")", Heads: []head{
		{"bytes", true}, {"blocks", true}, {"lifetime", false}, {"where", false}}}
	for k, h := range top.Holders {
		if k == most {
			holders.Note = fmt.Sprintf("The largest %d of %s; allocsim inspect --top --json lists all.", most, text.Count(len(top.Holders)))
			break
		}
		holders.add(words.Size(h.Bytes), words.Count(int64(h.Blocks)), words.Text(string(h.Lifetime)), words.Text(h.Where))
	}
	out = append(out, holders)
	if r := inspect.FindLeaks(tr, b.jobs[i].Machine.Capacity); len(r.Leaks) > 0 {
		leaks := &table{ID: id + "-leaks", Caption: "Memory that grows", Heads: []head{{"per iteration", true}, {"since", true}, {"blocks", true}, {"where", false}}}
		for k, l := range r.Leaks {
			if k == most {
				leaks.Note = fmt.Sprintf("The first %d of %s.", most, text.Count(len(r.Leaks)))
				break
			}
			leaks.add(words.Size(l.BytesPerIteration), words.Duration(float64(l.SinceUS)), words.Count(int64(l.Blocks)), words.Text(l.Where))
		}
		out = append(out, leaks)
	}
	largest := &table{ID: id + "-largest", Caption: "Largest requests", Heads: []head{{"size", true}, {"times", true}, {"first at", true}, {"where", false}}}
	for k, r := range sum.Largest {
		if k == most {
			break
		}
		largest.add(words.Size(r.Size), words.Count(int64(r.Count)), words.Duration(float64(r.TimeUS)), words.Text(r.Where))
	}
	out = append(out, largest)
	for k, r := range runs {
		if len(r.result.OOMs) == 0 {
			continue
		}
		ooms := &table{ID: fmt.Sprintf("%s-ooms%d", id, k), Caption: "Out of memory, " + r.Name, Heads: []head{
			{"at", true}, {"requested", true}, {"reserved", true}, {"allocated", true}, {"largest free block", true}, {"free on the device", true}, {"cause", false}, {"in the recording", false}}}
		for n, o := range r.result.OOMs {
			if n == most {
				ooms.Note = fmt.Sprintf("The first %d of %s; allocsim replay --json lists more.", most, text.Count(int(r.result.Stats.NumOOMs)))
				break
			}
			free := words.Text("unlimited")
			if r.result.Capacity > 0 {
				free = words.Size(o.DeviceFree)
			}
			recorded := "no"
			if o.Recorded {
				recorded = "yes"
			}
			ooms.add(words.Duration(float64(o.TimeUS)), words.Size(o.Requested), words.Size(o.Reserved), words.Size(o.Allocated), words.Size(o.LargestFree), free, words.Text(string(o.Cause)), words.Text(recorded))
		}
		out = append(out, ooms)
	}
	return out
}

// bound is the most bytes of a trace that live at once.
func (b *builder) bound(i int) int64 {
	if i < len(b.tuning.PerTrace) {
		return b.tuning.PerTrace[i].Bound
	}
	return b.tuning.Bound
}

// source describes an input.
func (b *builder) source(i int, sum *inspect.Summary) *source {
	tr := b.jobs[i].Trace
	s := &source{Name: b.inputs[i].Name, SHA256: b.inputs[i].SHA256}
	fact := func(k, v string) {
		if v != "" {
			s.Facts = append(s.Facts, [2]string{k, v})
		}
	}
	fact("format", tr.Format)
	fact("PyTorch", tr.Meta.Torch)
	device := tr.Meta.DeviceName
	if tr.Meta.DeviceTotal > 0 {
		device = strings.TrimSpace(device + " " + size(tr.Meta.DeviceTotal))
	}
	fact("device", device)
	if tr.Meta.ConfKnown {
		fact("setting recorded", words.OrDefault(tr.Meta.Conf))
	}
	var kinds []string
	for k, n := range sum.Events {
		kinds = append(kinds, text.Count(n)+" "+k)
	}
	slices.Sort(kinds)
	fact("events", strings.Join(kinds, ", "))
	if tr.Duration() > 0 {
		fact("duration", text.Duration(tr.Duration()))
	}
	if sum.Iterations > 0 {
		fact("iterations", fmt.Sprintf("%d (%s)", sum.Iterations, sum.IterationsFrom))
	}
	fact("peak allocated", size(sum.Peak.Allocated))
	return s
}

// glossary are the words of the report.
var glossary = [][2]string{
	{"allocated", "Bytes of blocks that the program holds."},
	{"active", "Allocated, and freed blocks that another stream still uses."},
	{"reserved", "What the allocator holds from the driver. nvidia-smi shows this and the CUDA context, about 0.6 GiB a process."},
	{"segment", "A range that the allocator got from the driver. A block is a piece of one."},
	{"cached", "Free memory that the allocator keeps for later and could give back: whole segments, or whole pages of expandable ones."},
	{"stranded", "Free memory that cannot be given back because something else lives in the same segment or page."},
	{"fragmentation", "Free memory in pieces too small for a request. External fragmentation is 1 − largest free block / all free bytes."},
	{"bound", "The most bytes live at once. No placement can need less."},
	{"limit", "Bytes the allocator may take: the memory fraction, or the device's capacity."},
	{"retry", "The allocator flushed its cache to serve a request. The program waits for the GPU and the driver."},
	{"OOM", "A request that could not be served even so: out of memory."},
	{"driver calls take", "Modelled time in cudaMalloc, cudaFree and the mapping calls of expandable segments."},
	{"at most", fmt.Sprintf("The worst of %d orders in which the driver may place segments and of %d traces with changed sizes.", sim.SpanOrders, planner.ChangedTraces)},
	{"runs", "How many runs with sizes changed by up to 5 % complete, of how many."},
	{"expandable segments", "Segments that grow page by page instead of coming and going as a whole."},
	{"headroom", "Memory of a card that is left: what an allocator can get of it less the smallest capacity that works."},
}

// parallel calls f for 0 … n-1 on some workers; the first error ends it.
func parallel(ctx context.Context, workers, n int, f func(ctx context.Context, k int) error) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for k := range n {
		g.Go(func() error { return f(ctx, k) })
	}
	return g.Wait()
}
