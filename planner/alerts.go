package planner

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/sim"
)

// Alert is a condition on a run, such as utilization>90%.
type Alert struct {
	Text   string
	metric metric
	op     string
	value  float64
	// Got is the value that fired.
	Got float64
}

// String says what fired.
func (a Alert) String() string {
	return fmt.Sprintf("%s (it is %s)", a.Text, a.metric.format(a.Got))
}

type metric struct {
	name, doc string
	value     func(*sim.Result) (float64, bool) // false: not defined for this run
	unit      unit
}

type unit uint8

const (
	unitCount unit = iota
	unitBytes
	unitShare
	unitMicros
)

// examples say how a value is written.
var examples = [...]string{
	unitCount:  "a number, such as 0",
	unitBytes:  "a size, such as 20GiB",
	unitShare:  "a share, such as 90% or 0.9",
	unitMicros: "a number of µs, such as 5000",
}

func (m metric) format(x float64) string {
	switch m.unit {
	case unitBytes:
		return bytesize.Format(int64(x))
	case unitShare:
		return fmt.Sprintf("%.1f %%", 100*x)
	case unitMicros:
		return fmt.Sprintf("%.0f µs", x)
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

var metrics = []metric{
	{"utilization", "peak allocated / peak reserved", func(r *sim.Result) (float64, bool) { return r.Utilization(), true }, unitShare},
	{"capacity_used", "peak reserved / capacity (or limit)", func(r *sim.Result) (float64, bool) {
		room := r.Room()
		if room == 0 {
			return 0, false
		}
		return float64(r.Stats.ReservedBytes[policies.All].Peak) / float64(room), true
	}, unitShare},
	{"fragmentation", "reserved but unallocated at the peak / reserved", func(r *sim.Result) (float64, bool) {
		if r.AtPeak == nil || r.AtPeak.Reserved == 0 {
			return 0, r.AtPeak != nil
		}
		return float64(r.AtPeak.ReservedUnallocated) / float64(r.AtPeak.Reserved), true
	}, unitShare},
	{"external_fragmentation", "1 − largest free block / all free bytes at the peak", func(r *sim.Result) (float64, bool) {
		if r.AtPeak == nil {
			return 0, false
		}
		return r.AtPeak.External, true
	}, unitShare},
	{"ooms", "allocations that failed", func(r *sim.Result) (float64, bool) { return float64(r.Stats.NumOOMs), true }, unitCount},
	{"retries", "cache flushes to serve a request", func(r *sim.Result) (float64, bool) { return float64(r.Stats.NumAllocRetries), true }, unitCount},
	{"reserved_peak", "most bytes reserved", func(r *sim.Result) (float64, bool) {
		return float64(r.Stats.ReservedBytes[policies.All].Peak), true
	}, unitBytes},
	{"allocated_peak", "most bytes allocated", func(r *sim.Result) (float64, bool) {
		return float64(r.Stats.AllocatedBytes[policies.All].Peak), true
	}, unitBytes},
	{"stall_us", "modelled time in driver calls, µs", func(r *sim.Result) (float64, bool) { return r.Driver.StallUS, true }, unitMicros},
}

var operators = []string{">=", "<=", "==", "!=", ">", "<"} // two-character ones first

// ParseAlerts reads expressions "NAME OP VALUE". The error names the
// expression and what can be written.
func ParseAlerts(exprs []string) ([]Alert, error) {
	var alerts []Alert
	for _, x := range exprs {
		a, err := parseAlert(x)
		if err != nil {
			return nil, fmt.Errorf("--fail-on %q: %w", x, err)
		}
		alerts = append(alerts, a)
	}
	return alerts, nil
}

func parseAlert(x string) (Alert, error) {
	at := strings.IndexAny(x, "<>=!")
	if at < 0 {
		return Alert{}, fmt.Errorf("write NAME OP VALUE, such as ooms>0")
	}
	name, rest := strings.TrimSpace(x[:at]), x[at:]
	op := ""
	for _, o := range operators {
		if strings.HasPrefix(rest, o) {
			op = o
			break
		}
	}
	if op == "" {
		return Alert{}, fmt.Errorf("operators are %s", strings.Join(operators, " "))
	}
	k := slices.IndexFunc(metrics, func(m metric) bool { return m.name == name })
	if k < 0 {
		var names []string
		for _, m := range metrics {
			names = append(names, m.name)
		}
		return Alert{}, fmt.Errorf("unknown name %q; known: %s", name, strings.Join(names, ", "))
	}
	text := strings.TrimSpace(rest[len(op):])
	a := Alert{Text: x, metric: metrics[k], op: op}
	var err error
	switch number, percent := strings.CutSuffix(text, "%"); {
	case a.metric.unit == unitBytes:
		var n int64
		n, err = bytesize.Parse(text)
		a.value = float64(n)
	case percent && a.metric.unit == unitShare:
		a.value, err = strconv.ParseFloat(strings.TrimSpace(number), 64)
		a.value /= 100
	default:
		a.value, err = strconv.ParseFloat(text, 64)
	}
	if err != nil || math.IsNaN(a.value) {
		return Alert{}, fmt.Errorf("%q is not a value for %s (%s); write %s", text, name, a.metric.doc, examples[a.metric.unit])
	}
	return a, nil
}

// Check returns the alerts that a run fires. A condition on a figure that the
// run does not have (no capacity, say) does not fire.
func Check(alerts []Alert, r *sim.Result) []Alert {
	var fired []Alert
	for _, a := range alerts {
		x, ok := a.metric.value(r)
		if !ok {
			continue
		}
		var yes bool
		switch a.op {
		case ">":
			yes = x > a.value
		case ">=":
			yes = x >= a.value
		case "<":
			yes = x < a.value
		case "<=":
			yes = x <= a.value
		case "==":
			yes = x == a.value
		case "!=":
			yes = x != a.value
		}
		if yes {
			a.Got = x
			fired = append(fired, a)
		}
	}
	return fired
}

// AlertNames lists what an alert can be about, for help texts: name and
// meaning.
func AlertNames() [][2]string {
	var out [][2]string
	for _, m := range metrics {
		out = append(out, [2]string{m.name, m.doc})
	}
	return out
}

// CheckJobs runs the jobs under a candidate of Tune and returns the alerts
// that any of them fires.
func CheckJobs(ctx context.Context, alerts []Alert, jobs []Case, c Candidate) ([]Alert, error) {
	var fired []Alert
	for _, j := range jobs {
		if c.spec != nil {
			j.Policy = c.spec
		}
		res, err := Replay(ctx, &j, true)
		if err != nil {
			return nil, err
		}
		fired = append(fired, Check(alerts, res.Result)...)
	}
	return fired, nil
}
