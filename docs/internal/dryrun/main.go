// Command dryrun writes docs/dry-run.md: what dry runs predicted for the
// programs in testdata/programs, and what the same programs took on a real
// H200.
//
//	for p in $(python testdata/programs/programs.py --list); do
//	  python validate/record/allocsim_record.py --dry-run --steps 0 -o DIR/$p testdata/programs/programs.py $p
//	done
//	go run ./docs/internal/dryrun -predict DIR    # replays DIR/*.dryrun into testdata/programs/now.json
//	go run ./docs/internal/dryrun -write
//
// Without -write it prints the page. The test beside it fails when the
// committed page differs from what the program would write.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"allocsim/planner"
	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces/formats"
)

//go:embed dry-run.md.tmpl
var text string

// peaks are the figures of one run, in bytes.
type peaks struct {
	Allocated int64 `json:"allocated"`
	Reserved  int64 `json:"reserved"`
	Requests  int64 `json:"requests"`
}

// results are the runs of one file in testdata/programs.
type results struct {
	Device string           `json:"device,omitempty"`
	Commit string           `json:"commit,omitempty"`
	Runs   map[string]peaks `json:"runs"`
}

func main() {
	write := flag.Bool("write", false, "write the page instead of printing it")
	predict := flag.String("predict", "", "replay the dry runs of this `folder` first")
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := run(*root, *predict, *write); err != nil {
		fmt.Fprintln(os.Stderr, "dryrun:", err)
		os.Exit(1)
	}
}

func run(root, folder string, write bool) error {
	if folder != "" {
		if err := replayAll(root, folder); err != nil {
			return err
		}
	}
	page, err := render(root)
	if err != nil {
		return err
	}
	if !write {
		_, err = os.Stdout.Write(page)
		return err
	}
	return os.WriteFile(filepath.Join(root, "docs", "dry-run.md"), page, 0o644)
}

// replayAll replays every recording of folder under PyTorch's defaults and
// writes now.json.
func replayAll(root, folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.dryrun"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no *.dryrun in %s", folder)
	}
	out := results{Runs: map[string]peaks{}}
	for _, f := range files {
		p, err := replay(f)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		out.Runs[strings.TrimSuffix(filepath.Base(f), ".dryrun")] = p
	}
	b, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "testdata", "programs", "now.json"), append(b, '\n'), 0o644)
}

func replay(path string) (peaks, error) {
	ctx := context.Background()
	rec, err := formats.Open(ctx, path, formats.Options{})
	if err != nil {
		return peaks{}, err
	}
	tr, err := rec.Device(-1)
	if err != nil {
		return peaks{}, err
	}
	c, err := planner.NewCase(ctx, tr, planner.Choice{})
	if err != nil {
		return peaks{}, err
	}
	r, err := sim.Run(ctx, c.Trace, c.Config())
	if err != nil {
		return peaks{}, err
	}
	s := &r.Stats
	return peaks{s.AllocatedBytes[policies.All].Peak, s.ReservedBytes[policies.All].Peak, s.Allocation[policies.All].Allocated}, nil
}

func load(root, name string) (results, error) {
	var r results
	b, err := os.ReadFile(filepath.Join(root, "testdata", "programs", name))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, err
}

// row is a program's line: errors in percent.
type row struct {
	Name              string
	Real              peaks
	AllocatedBefore   float64
	Allocated         float64
	ReservedBefore    float64
	Reserved          float64
	Requests          float64
	Why               string
	RealMiB, DryMiB   string
	RealResMiB, ResMB string
}

// figures are the statistics of one column.
type figures struct {
	Median, P90, Worst float64
	Program            string
}

type book struct {
	Rows                                                 []row
	N                                                    int
	Device                                               string
	AllocatedBefore, Allocated, ReservedBefore, Reserved figures
	Requests                                             figures
	Peers                                                []peer
}

// peer is another estimator's error on the programs that it covers.
type peer struct {
	Name   string  `json:"name"`
	N      int     `json:"n"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Worst  float64 `json:"worst"`
	Note   string  `json:"note"`
}

func render(root string) ([]byte, error) {
	truth, err := load(root, "real.json")
	if err != nil {
		return nil, err
	}
	before, err := load(root, "before.json")
	if err != nil {
		return nil, err
	}
	now, err := load(root, "now.json")
	if err != nil {
		return nil, err
	}
	why := map[string]string{}
	var peers []peer
	for name, into := range map[string]any{"why.json": &why, "peers.json": &peers} {
		b, err := os.ReadFile(filepath.Join(root, "testdata", "programs", name))
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	b := book{Device: truth.Device, Peers: peers}
	for _, name := range slices.Sorted(maps.Keys(truth.Runs)) {
		real, old := truth.Runs[name], before.Runs[name]
		p, ok := now.Runs[name]
		if !ok {
			return nil, fmt.Errorf("now.json lacks %s", name)
		}
		b.Rows = append(b.Rows, row{
			Name: name, Real: real, Why: why[name],
			AllocatedBefore: percent(old.Allocated, real.Allocated), Allocated: percent(p.Allocated, real.Allocated),
			ReservedBefore: percent(old.Reserved, real.Reserved), Reserved: percent(p.Reserved, real.Reserved),
			Requests: percent(p.Requests, real.Requests),
			RealMiB:  mib(real.Allocated), DryMiB: mib(p.Allocated), RealResMiB: mib(real.Reserved), ResMB: mib(p.Reserved),
		})
	}
	b.N = len(b.Rows)
	b.AllocatedBefore = column(b.Rows, func(r row) float64 { return r.AllocatedBefore })
	b.Allocated = column(b.Rows, func(r row) float64 { return r.Allocated })
	b.ReservedBefore = column(b.Rows, func(r row) float64 { return r.ReservedBefore })
	b.Reserved = column(b.Rows, func(r row) float64 { return r.Reserved })
	b.Requests = column(b.Rows, func(r row) float64 { return r.Requests })
	t, err := template.New("page").Parse(text)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, b)
	return out.Bytes(), err
}

func percent(predicted, real int64) float64 {
	return (float64(predicted)/float64(real) - 1) * 100
}

func mib(n int64) string { return fmt.Sprintf("%.0f", float64(n)/(1<<20)) }

// column is the median, the 90th percentile (nearest rank) and the worst of
// the absolute errors.
func column(rows []row, of func(row) float64) figures {
	type at struct {
		v    float64
		name string
	}
	var all []at
	for _, r := range rows {
		all = append(all, at{math.Abs(of(r)), r.Name})
	}
	slices.SortFunc(all, func(a, b at) int {
		switch {
		case a.v < b.v:
			return -1
		case a.v > b.v:
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	n := len(all)
	rank := func(q float64) float64 { return all[int(math.Ceil(q*float64(n)))-1].v }
	return figures{Median: rank(0.5), P90: rank(0.9), Worst: all[n-1].v, Program: all[n-1].name}
}
