package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces/formats"
)

// settings are the what-ifs asked of every recording with and without its
// sidecar.
var settings = []string{
	"",
	"expandable_segments:True",
	"max_split_size_mb:128",
	"roundup_power2_divisions:4",
	"garbage_collection_threshold:0.6",
	"max_split_size_mb:64,garbage_collection_threshold:0.8",
}

// samples is how many worlds stand for what leaves no trace.
const samples = 200

// withheldLine is one recording, read with its sidecar and without.
type withheldLine struct {
	folder, name string
	exact        bool
	worlds       int
	bound        int  // truth: the recording met no bound (0), a limit (1), a full card (2)
	contained    bool // one of the explanations is the truth
	first        bool // and it is the first
	// what-ifs whose answer is the sidecar's in every world; in some, or
	// between them; within what a bound that was never met allows, which the
	// recovery says; neither.
	equal, inside, unmet, wrong int
	outside                     []miss
}

// miss is a what-if whose answer is in no world that was tried.
type miss struct {
	conf            string
	want, low, high outcome
}

// outcome is what a what-if answers.
type outcome [3]int64 // reserved peak, retries, OOMs

func outcomeOf(ctx context.Context, e recovery.Explanation, conf string, rec *recovery.Recovered) (outcome, error) {
	spec, err := torch.Parse(conf, rec.Version)
	if err != nil {
		return outcome{}, err
	}
	res, err := sim.Run(ctx, e.Trace, sim.Config{Policy: spec, Machine: e.Machine, Brief: true})
	if err != nil {
		return outcome{}, err
	}
	return outcome{res.Stats.ReservedBytes[policies.All].Peak, res.Stats.NumAllocRetries, res.Stats.NumOOMs}, nil
}

// withoutSidecar opens a recording as if it had no sidecar.
func withoutSidecar(ctx context.Context, path string) (*recovery.Recovered, error) {
	dir, err := os.MkdirTemp("", "accuracy")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	link := filepath.Join(dir, filepath.Base(path))
	if err := os.Symlink(path, link); err != nil {
		return nil, err
	}
	return open(ctx, link)
}

func withhold(ctx context.Context, path string) (*withheldLine, error) {
	known, err := open(ctx, path)
	if err != nil {
		return nil, err
	}
	rec, err := withoutSidecar(ctx, path)
	if err != nil {
		return nil, err
	}
	truth := known.Explanations[0]
	l := &withheldLine{
		folder: filepath.Base(filepath.Dir(path)), name: strings.TrimSuffix(filepath.Base(path), ".pickle.zst"),
		exact: rec.Exact, worlds: len(rec.Explanations),
	}
	met := truth.Kind == recovery.KindCard || known.Trace.Recorded.Stats["num_alloc_retries"]+known.Trace.Recorded.Stats["num_ooms"] > 0
	for i, e := range rec.Explanations {
		same := false
		switch truth.Kind {
		case recovery.KindNone:
			same = !e.Limited()
		case recovery.KindFraction:
			same = e.Kind == recovery.KindFraction && e.Low <= truth.Machine.Limit && truth.Machine.Limit <= e.High ||
				!e.Limited() && e.Low <= truth.Machine.Limit
		case recovery.KindCard:
			same = e.Kind == recovery.KindCard && e.Low <= truth.Machine.Capacity && truth.Machine.Capacity <= e.High
		}
		if same && (!met || e.Limited() || truth.Kind == recovery.KindNone) {
			l.contained = true
			l.first = l.first || i == 0
		}
	}
	switch {
	case truth.Kind == recovery.KindCard:
		l.bound = 2
	case truth.Kind == recovery.KindFraction && met:
		l.bound = 1
	}
	var variants []recovery.Explanation
	for _, conf := range settings {
		want, err := outcomeOf(ctx, truth, conf, known)
		if err != nil {
			return nil, err
		}
		low, high := outcome{1 << 62, 1 << 62, 1 << 62}, outcome{}
		widen := func(e recovery.Explanation) error {
			got, err := outcomeOf(ctx, e, conf, rec)
			for i := range got {
				low[i], high[i] = min(low[i], got[i]), max(high[i], got[i])
			}
			return err
		}
		for _, e := range rec.Explanations {
			if err := widen(e); err != nil {
				return nil, err
			}
		}
		inside := func() bool {
			for i := range want {
				if want[i] < low[i] || want[i] > high[i] {
					return false
				}
			}
			return true
		}
		switch {
		case low == want && high == want:
			l.equal++
		case inside():
			l.inside++
		default:
			if variants == nil {
				if variants, err = rec.Sample(ctx, samples); err != nil {
					return nil, err
				}
			}
			for _, e := range variants {
				if err := widen(e); err != nil {
					return nil, err
				}
			}
			if inside() {
				l.unmet++
				continue
			}
			l.wrong++
			l.outside = append(l.outside, miss{conf, want, low, high})
		}
	}
	return l, nil
}

func withheld(ctx context.Context, folders []string) ([]withheldLine, error) {
	var lines []withheldLine
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.pickle.zst"))
		if err != nil {
			return nil, err
		}
		slices.Sort(files)
		for _, f := range files {
			if formats.Sidecar(f) == "" {
				continue
			}
			l, err := withhold(ctx, f)
			if err != nil {
				return nil, err
			}
			lines = append(lines, *l)
		}
	}
	return lines, nil
}

func reportWithheld(w io.Writer, lines []withheldLine) error {
	p := &printer{w: w}
	p.f("\n## Recordings without their sidecars\n\n")
	p.f("Each recording is read as if it had no sidecar: memory limit, `empty_cache` calls, release, device and statistics are\n")
	p.f("unknown. The explanations that fit every recorded event must contain the truth: the same kind of bound with the recorded\n")
	p.f("one in its bracket, or no bound where the recorded one was never met. %d settings are then asked of every recording,\n", len(settings))
	p.f("with its sidecar and under every explanation; an answer is reserved peak, retries and OOMs.\n\n")
	p.f("| folder | recordings | every event follows | truth among the explanations | it comes first | what-ifs | the same under all | inside the range of the explanations | inside what leaves no trace | outside |\n")
	p.f("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	row := func(name string, keep func(withheldLine) bool) {
		var n, exact, contained, first, equal, inside, unmet, wrong int
		for _, l := range lines {
			if !keep(l) {
				continue
			}
			n++
			exact += toInt(l.exact)
			contained += toInt(l.contained)
			first += toInt(l.first)
			equal, inside, unmet, wrong = equal+l.equal, inside+l.inside, unmet+l.unmet, wrong+l.wrong
		}
		p.f("| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", name, n, exact, contained, first, equal+inside+unmet+wrong, equal, inside, unmet, wrong)
	}
	var folders []string
	for _, l := range lines {
		if !slices.Contains(folders, l.folder) {
			folders = append(folders, l.folder)
		}
	}
	for _, f := range folders {
		row(f, func(l withheldLine) bool { return l.folder == f })
	}
	row("**all**", func(withheldLine) bool { return true })
	p.f("\nWhat leaves no trace: a bound that was never met, and `empty_cache` calls that released nothing. Both may matter under another\n")
	p.f("setting. The range is then over %d worlds drawn from these (`Recovered.Sample`).\n", samples)
	p.f("\nThe what-ifs outside differ by no more than this (reserved peak in bytes, retries, OOMs):\n\n")
	p.f("| recording | setting | with the sidecar | smallest and largest without |\n|---|---|---|---|\n")
	for _, l := range lines {
		for _, w := range l.outside {
			p.f("| %s/%s | `%s` | %v | %v … %v |\n", l.folder, l.name, w.conf, w.want, w.low, w.high)
		}
	}
	p.f("\nThe worlds between are too many to try: a limit anywhere in its bracket together with any set of calls that released nothing.\n")
	return p.err
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
