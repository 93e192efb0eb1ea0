package plots

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// unit is a unit of an axis.
type unit struct {
	name string
	size float64
}

var byteUnits = []unit{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

var timeUnits = []unit{{"µs", 1}, {"ms", 1e3}, {"s", 1e6}}

// pick is the largest unit of which the axis has at least two.
func pick(units []unit, top float64) unit {
	u := units[0]
	for _, c := range units {
		if top >= 2*c.size {
			u = c
		}
	}
	return u
}

// ticks are main ticks with numbers at multiples of step, in units.
type ticks struct {
	unit unit
	step float64
	// values are the ticks' own, where they are not multiples of a step.
	marks []plot.Tick
}

func (t ticks) Ticks(low, high float64) []plot.Tick {
	if t.marks != nil {
		return t.marks
	}
	var out []plot.Tick
	for k := math.Ceil(low/t.step - 1e-9); k*t.step <= high*(1+1e-12); k++ {
		v := k * t.step
		out = append(out, plot.Tick{Value: v, Label: number(v / t.unit.size)})
	}
	return out
}

// number writes a number without what floating point adds to it.
func number(x float64) string {
	x = math.Round(x*1e6) / 1e6
	if x == 0 {
		x = 0 // not -0
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// byteTicks are about n ticks up to top bytes, at powers of two of a unit or
// at round numbers of it.
func byteTicks(top float64, n int) ticks {
	u := pick(byteUnits, top)
	step := 0.0
	for _, c := range []float64{0.25, 0.5, 1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1024} {
		if c < 1 && u.size == 1 {
			continue
		}
		step = c * u.size
		if top/step <= float64(max(n, 2)) {
			return ticks{unit: u, step: step}
		}
	}
	return decimalTicks(u, top, n)
}

// timeTicks are about n ticks up to top µs.
func timeTicks(top float64, n int) ticks { return decimalTicks(pick(timeUnits, top), top, n) }

// decimalTicks are about n ticks up to top at 1, 2 or 5 times a power of ten.
func decimalTicks(u unit, top float64, n int) ticks {
	raw := top / u.size / float64(max(n, 1))
	if raw <= 0 {
		return ticks{unit: u, step: u.size}
	}
	p := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, c := range []float64{1, 2, 5, 10} {
		if c*p >= raw*(1-1e-9) {
			return ticks{unit: u, step: c * p * u.size}
		}
	}
	return ticks{unit: u, step: 10 * p * u.size}
}
