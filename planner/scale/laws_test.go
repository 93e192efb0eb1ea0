package scale

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// numbers reads "1 2 3".
func numbers(t *testing.T, s string) []int64 {
	var out []int64
	for f := range strings.FieldsSeq(s) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

// TestTranscripts runs testdata/*.txt:
//
//	fit [length] [short]      lines "VALUE=BYTES … -> VALUE …"
//	reduction [sms=N threads=N]  lines "BUFFER SEMAPHORES"
//	blocks sms=N threads=N    lines "BUFFER SEMAPHORES ROWS …"
//	rule [cap=N] …            lines "VALUE=BYTES/SEMAPHORES … -> VALUE …"
//	align from=X to=Y         two lines of "SIZE" or "SIZE/LIFE", then the pairs
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, path := range files {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			argument := func(name string) int {
				n := 0
				d.MaybeScanArgs(t, name, &n)
				return n
			}
			switch d.Cmd {
			case "fit":
				for line := range strings.SplitSeq(d.Input, "\n") {
					recorded, values, _ := strings.Cut(line, "->")
					var ps []point
					for f := range strings.FieldsSeq(recorded) {
						var p point
						if _, err := fmt.Sscanf(f, "%d=%d", &p.x, &p.s); err != nil {
							t.Fatal(err)
						}
						ps = append(ps, p)
					}
					for _, x := range numbers(t, values) {
						m := &Model{}
						if d.HasArg("length") {
							m.opt.Vary = "length"
						}
						f := m.fitPoints(ps, x, d.HasArg("short"))
						fmt.Fprintf(&b, "%d: %d %s", x, f.size, f.law)
						if !f.certain() {
							fmt.Fprintf(&b, " ×%.2f…%.2f", f.low, f.high)
						}
						b.WriteByte('\n')
					}
				}
			case "reduction":
				for line := range strings.SplitSeq(d.Input, "\n") {
					n := numbers(t, line)
					r, ok := reductionOf(n[0], n[1])
					if !ok {
						b.WriteString("no reduction\n")
						continue
					}
					fmt.Fprintf(&b, "%d columns, grid %d, height %d: %d blocks of %d bytes", r.columns, r.grid, r.by, r.blocks, r.unit)
					if g := (grid{argument("sms"), argument("threads")}); g.sms > 0 {
						fmt.Fprintf(&b, ", cap %d", g.cap(r))
					}
					b.WriteByte('\n')
				}
			case "blocks":
				for line := range strings.SplitSeq(d.Input, "\n") {
					n := numbers(t, line)
					r, ok := reductionOf(n[0], n[1])
					if !ok {
						t.Fatalf("no reduction: %s", line)
					}
					for _, rows := range n[2:] {
						c := r.blocksFor(rows, grid{argument("sms"), argument("threads")}.cap(r))
						fmt.Fprintf(&b, "%d rows: %d blocks, %d bytes\n", rows, c, c*r.unit)
					}
				}
			case "rule": // votes=BYTES names a proportional tensor's bytes per unit
				votes := map[int64]int{}
				if v := argument("votes"); v > 0 {
					votes[int64(v)] = 1
				}
				for line := range strings.SplitSeq(d.Input, "\n") {
					recorded, values, _ := strings.Cut(line, "->")
					var xs []int64
					var rs []reduction
					for f := range strings.FieldsSeq(recorded) {
						var x, size, sem int64
						if _, err := fmt.Sscanf(f, "%d=%d/%d", &x, &size, &sem); err != nil {
							t.Fatal(err)
						}
						r, ok := reductionOf(size, sem)
						if !ok && size > 0 {
							t.Fatalf("no reduction: %s", f)
						}
						if size == 0 {
							r.by = rs[0].by
						}
						xs, rs = append(xs, x), append(rs, r)
					}
					for _, x := range numbers(t, values) {
						f, ok := fitReduction(xs, rs, x, int64(argument("cap")), votes)
						if !ok {
							fmt.Fprintf(&b, "%d: does not follow the rule\n", x)
							continue
						}
						fmt.Fprintf(&b, "%d: %d", x, f.size)
						if !f.certain() {
							fmt.Fprintf(&b, " ×%.2f…%.2f", f.low, f.high)
						}
						b.WriteByte('\n')
					}
				}
			case "align":
				lists := strings.Split(d.Input, "\n")
				var sides [2][]alloc
				for i := range sides {
					for f := range strings.FieldsSeq(lists[i]) {
						size, life, given := strings.Cut(f, "/")
						a := alloc{size: numbers(t, size)[0], life: forever}
						if given {
							a.life = int32(numbers(t, life)[0])
						}
						sides[i] = append(sides[i], a)
					}
				}
				r := ratio{int64(argument("from")), int64(argument("to")), d.HasArg("length")}
				pairs, err := align(context.Background(), sides[0], sides[1], r)
				if err != nil {
					t.Fatal(err)
				}
				for i, j := range pairs {
					if j < 0 {
						fmt.Fprintf(&b, "%d -\n", sides[0][i].size)
					} else {
						fmt.Fprintf(&b, "%d %d\n", sides[0][i].size, sides[1][j].size)
					}
				}
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return b.String()
		})
	}
}

// TestReductionRule: whatever a reduction's rows and columns, the buffer that
// the rule gives is recognised, and the rows are among those it allows.
func TestReductionRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(2, 60000).Draw(t, "columns")
		rows := rapid.Int64Range(1, 1<<20).Draw(t, "rows")
		g := grid{rapid.IntRange(10, 180).Draw(t, "sms"), rapid.SampledFrom([]int{1024, 1536, 2048}).Draw(t, "threads")}
		v := vector(n)
		bx := min(32, pow2(n/v))
		want := reduction{columns: n, unit: 4 * n * bx * v, grid: ceilDiv(n, bx*v), by: 512 / v / bx}
		limit := g.cap(want)
		want.blocks = want.blocksFor(rows, limit)
		if want.blocks < 2 || want.grid > 4096 {
			t.Skip("no workspace (one block), or more semaphores than reductionOf takes")
		}
		got, ok := reductionOf(want.unit*want.blocks, 4*want.grid)
		if !ok {
			t.Fatalf("%+v is not recognised", want)
		}
		if got.unit*got.blocks != want.unit*want.blocks {
			t.Fatalf("%+v is read as %+v", want, got)
		}
		if got != want {
			t.Skip("several shapes have the same bytes")
		}
		if lo, hi := got.rowsRange(limit); rows < lo || rows > hi {
			t.Fatalf("%d rows are not in %d…%d of %+v, cap %d", rows, lo, hi, got, limit)
		}
	})
}

// TestExactLaws: a law that generated the sizes is found and gives the size
// at a third value to the byte.
func TestExactLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Int64Range(1, 1<<20).Draw(t, "a")
		c := rapid.Int64Range(minShift, maxShift).Draw(t, "c")
		xs := rapid.SliceOfNDistinct(rapid.Int64Range(9, 4096), 2, 4, rapid.ID).Draw(t, "values")
		x := rapid.Int64Range(9, 1<<16).Draw(t, "x")
		length := rapid.Bool().Draw(t, "length")
		law := rapid.SampledFrom([]func(x int64) int64{
			func(int64) int64 { return a },
			func(x int64) int64 { return a * x },
			func(x int64) int64 { return a * (x + c) },
		}).Draw(t, "law")
		var ps []point
		for _, x := range xs {
			ps = append(ps, point{x, law(x)})
		}
		sortPoints(ps)
		f := fitSizes(ps, x, false, length)
		if f.size != law(x) || !f.law.Exact() || !f.certain() {
			t.Fatalf("%v at %d: %+v, want %d", ps, x, f, law(x))
		}
	})
}

func sortPoints(ps []point) {
	for i := range ps {
		for j := i; j > 0 && ps[j].x < ps[j-1].x; j-- {
			ps[j], ps[j-1] = ps[j-1], ps[j]
		}
	}
}
