// Command accuracy measures what-if predictions against real runs and writes
// the table of docs/accuracy.md. From each recording NAME__default alone it
// predicts every other recorded configuration NAME__TAG of the same program
// and compares with what that run did.
//
//	go run ./docs/internal/accuracy FOLDER [FOLDER…] > docs/accuracy.md
//
// The first FOLDER holds NAME__TAG.pickle.zst with their sidecars. The
// recordings of all folders are also read without their sidecars, and what is
// found out about them is compared with what the sidecars say.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces"
	"allocsim/traces/formats"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: accuracy FOLDER [FOLDER…]")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "accuracy:", err)
		os.Exit(2)
	}
}

// line is one prediction.
type line struct {
	program, tag                string
	truth, predicted            int64
	low, high                   int64
	retries, ooms, deviceAllocs [2]int64 // predicted, true
	sameRequests                bool
	real                        bool // the real run met an OOM that changed it
}

func (l line) err() float64 { return float64(l.predicted)/float64(l.truth) - 1 }

func run(ctx context.Context, folders []string, w io.Writer) error {
	folder := folders[0]
	files, err := filepath.Glob(filepath.Join(folder, "*__*.pickle.zst"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	programs := make(map[string][]string)
	var order []string
	for _, f := range files {
		name, _, _ := strings.Cut(filepath.Base(f), "__")
		if len(programs[name]) == 0 {
			order = append(order, name)
		}
		programs[name] = append(programs[name], f)
	}
	var lines []line
	for _, name := range order {
		base := filepath.Join(folder, name+"__default.pickle.zst")
		if !slices.Contains(programs[name], base) {
			if base = filepath.Join(folder, name+"__f12.pickle.zst"); !slices.Contains(programs[name], base) {
				continue
			}
		}
		from, err := open(ctx, base)
		if err != nil {
			return err
		}
		for _, f := range programs[name] {
			l, err := predict(ctx, from, f)
			if err != nil {
				return err
			}
			l.program = name
			lines = append(lines, l)
		}
	}
	if err := report(w, lines); err != nil {
		return err
	}
	bare, err := withheld(ctx, folders)
	if err != nil {
		return err
	}
	if err := reportWithheld(w, bare); err != nil {
		return err
	}
	_, err = io.WriteString(w, relations)
	return err
}

// relations are what answers must hold to; a test asks for them.
//
//go:embed relations.md
var relations string

func open(ctx context.Context, path string) (*recovery.Recovered, error) {
	file, err := formats.Open(ctx, path, formats.Options{})
	if err != nil {
		return nil, err
	}
	tr, err := file.Device(-1)
	if err != nil {
		return nil, err
	}
	return recovery.Recover(ctx, tr, recovery.Options{})
}

func predict(ctx context.Context, from *recovery.Recovered, path string) (line, error) {
	target, err := open(ctx, path)
	if err != nil {
		return line{}, err
	}
	cfg := sim.Config{Policy: target.Policy, Machine: sim.Machine{Limit: target.Limit, Total: target.Trace.Meta.DeviceTotal}}
	res, err := sim.Run(ctx, from.Trace, cfg)
	if err != nil {
		return line{}, err
	}
	span, err := sim.SampleSpan(ctx, from.Trace, cfg, sim.SpanOrders, 0)
	if err != nil {
		return line{}, err
	}
	truth := target.Trace.Recorded.Stats
	_, tag, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".pickle.zst"), "__")
	return line{
		tag:   tag,
		truth: truth["reserved_bytes.all.peak"], predicted: res.Stats.ReservedBytes[policies.All].Peak,
		low: span.ReservedPeak[0], high: span.ReservedPeak[1],
		retries:      [2]int64{res.Stats.NumAllocRetries, truth["num_alloc_retries"]},
		ooms:         [2]int64{res.Stats.NumOOMs, truth["num_ooms"]},
		deviceAllocs: [2]int64{res.Stats.NumDeviceAlloc, truth["num_device_alloc"]},
		sameRequests: sameRequests(from.Trace, target.Trace),
		real:         truth["num_ooms"] > 0 && from.Trace.Recorded.Stats["num_ooms"] != truth["num_ooms"],
	}, nil
}

// sameRequests reports that two recordings ask for the same sizes on the same
// streams in the same order, with the same frees at the same places.
func sameRequests(a, b *traces.Trace) bool {
	if len(a.Events) != len(b.Events) {
		return false
	}
	for i := range a.Events {
		x, y := a.Events[i], b.Events[i]
		x.TimeUS, y.TimeUS = 0, 0
		if x != y {
			return false
		}
	}
	return true
}

func report(w io.Writer, lines []line) error {
	p := &printer{w: w}
	p.f("# What-if accuracy\n\n")
	p.f("Made by `go run ./docs/internal/accuracy FOLDER…`, where the first FOLDER holds real H200 recordings\n")
	p.f("of the same programs under different configurations (torch 2.11, driver 580).\n\n")
	p.f("From the recording of each program under PyTorch's defaults alone (`oom_retry`: from `f12`), every other\n")
	p.f("recorded configuration is predicted and compared with what that run really did. Used of the default recording:\n")
	p.f("sizes, order, streams, frees, `empty_cache` calls. Segment addresses come from the driver model. The span is\n")
	p.f("over %d random orders of driver addresses plus the model (`--span`).\n\n", sim.SpanOrders)

	p.f("## By configuration\n\n")
	p.f("| configuration | predictions | peak exact | median error | largest error | retries and OOMs right | driver allocations right | truth in span |\n")
	p.f("|---|---:|---:|---:|---:|---:|---:|---:|\n")
	var tags []string
	for _, l := range lines {
		if !slices.Contains(tags, l.tag) {
			tags = append(tags, l.tag)
		}
	}
	slices.Sort(tags)
	row := func(name string, keep func(line) bool) {
		var errs []float64
		var n, exact, counts, allocs, inside int
		for _, l := range lines {
			if !keep(l) {
				continue
			}
			n++
			e := math.Abs(l.err())
			errs = append(errs, e)
			if e == 0 {
				exact++
			}
			if l.retries[0] == l.retries[1] && l.ooms[0] == l.ooms[1] {
				counts++
			}
			if l.deviceAllocs[0] == l.deviceAllocs[1] {
				allocs++
			}
			if l.low <= l.truth && l.truth <= l.high {
				inside++
			}
		}
		if n == 0 {
			return
		}
		slices.Sort(errs)
		p.f("| %s | %d | %d | %.2f %% | %.2f %% | %d | %d | %d |\n", name, n, exact, 100*errs[(n-1)/2], 100*errs[n-1], counts, allocs, inside)
	}
	for _, tag := range tags {
		row(tag, func(l line) bool { return l.tag == tag })
	}
	row("**all**", func(line) bool { return true })
	row("**all whose real run met no OOM of its own**", func(l line) bool { return !l.real })
	row("**same requests in both runs**", func(l line) bool { return l.sameRequests })

	p.f("\n## Every prediction that is not right\n\n")
	p.f("A line is listed when its peak, retries, OOMs or driver allocations differ.\n\n")
	p.f("| program | configuration | true MiB | predicted MiB | error | span MiB | retries | OOMs | driver allocations | why |\n")
	p.f("|---|---|---:|---:|---:|---|---:|---:|---:|---|\n")
	for _, l := range lines {
		if l.err() == 0 && l.retries[0] == l.retries[1] && l.ooms[0] == l.ooms[1] && l.deviceAllocs[0] == l.deviceAllocs[1] {
			continue
		}
		why := "addresses: libraries take memory from the driver between PyTorch's calls, which shifts ties between equal blocks"
		switch {
		case l.real:
			why = "the real run met OOMs, and what the program or library did then is not in the default recording"
		case !l.sameRequests:
			why = "the two runs did not make the same requests in the same order (sizes, order of frees or completion times differ)"
		}
		p.f("| %s | %s | %d | %d | %+.2f %% | %d … %d | %d / %d | %d / %d | %d / %d | %s |\n", l.program, l.tag, l.truth>>20, l.predicted>>20,
			100*l.err(), l.low>>20, l.high>>20, l.retries[0], l.retries[1], l.ooms[0], l.ooms[1], l.deviceAllocs[0], l.deviceAllocs[1], why)
	}
	p.f("\nPairs are predicted / true.\n")
	return p.err
}

// printer keeps the first error of many writes.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
