// Package bytesize reads and writes sizes the way people type them.
package bytesize

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The binary units.
const (
	KiB = 1 << 10
	MiB = 1 << 20
	GiB = 1 << 30
	TiB = 1 << 40
)

var units = map[string]float64{
	"": 1, "b": 1, "byte": 1, "bytes": 1,
	"k": KiB, "kib": KiB, "kb": 1e3,
	"m": MiB, "mib": MiB, "mb": 1e6,
	"g": GiB, "gib": GiB, "gb": 1e9,
	"t": TiB, "tib": TiB, "tb": 1e12,
}

// Parse reads "24GiB", "24 GB", "1.5g", "80000MiB" or "123" (bytes). Units
// with an i and single letters are binary, others decimal; case and spaces do
// not matter. The size must be a whole, non-negative number of bytes below
// 2^63; a fraction of a byte is rounded down.
func Parse(s string) (int64, error) {
	t := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(s)), "_", "")
	i := len(t)
	for i > 0 && (t[i-1] >= 'a' && t[i-1] <= 'z' || t[i-1] == ' ') {
		i--
	}
	number, unit := strings.TrimSpace(t[:i]), strings.TrimSpace(t[i:])
	factor, ok := units[unit]
	if !ok {
		return 0, fmt.Errorf("size %q: unknown unit %q; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB", s, unit)
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 0 && float64(n)*factor < math.MaxInt64 {
		return n * int64(factor), nil
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		if strings.Contains(number, ",") {
			return 0, fmt.Errorf("size %q: write the decimal point as '.'", s)
		}
		return 0, fmt.Errorf("size %q is not a number with a unit, such as 24GiB", s)
	}
	v *= factor
	if !(v >= 0) || v >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is out of range", s)
	}
	return int64(v), nil
}

// Format writes n in the largest binary unit that keeps it at least 1, with
// up to two decimals: "20 MiB", "1.91 GiB", "512 B".
func Format(n int64) string {
	if n < 0 {
		return "-" + Format(-max(n, -math.MaxInt64))
	}
	// What two decimals would round up to 1024.00 of a unit is 1.00 of the
	// next.
	const almost = 1023.995 / 1024
	switch f := float64(n); {
	case f >= TiB*almost:
		return scaled(n, TiB, "TiB")
	case f >= GiB*almost:
		return scaled(n, GiB, "GiB")
	case f >= MiB*almost:
		return scaled(n, MiB, "MiB")
	case n >= KiB:
		return scaled(n, KiB, "KiB")
	}
	return fmt.Sprintf("%d B", n)
}

// FormatUp is Format rounded up: for what is needed, so that the figure works
// when it is typed back.
func FormatUp(n int64) string { return Format(roundTo(n, 1)) }

// FormatDown is Format rounded down: for what there is.
func FormatDown(n int64) string { return Format(roundTo(n, 0)) }

// roundTo rounds n to the last digit that Format shows, up or down. The second
// decimal of a binary unit is no whole number of bytes: the result is the
// nearest one that prints and parses on the right side.
func roundTo(n int64, up int64) int64 {
	for _, unit := range []int64{TiB, GiB, MiB, KiB} {
		if n < unit || n%unit == 0 {
			continue
		}
		hundredths := int64(float64(n) / float64(unit) * 100)
		for k := hundredths - 1; k <= hundredths+2; k++ {
			at := int64(float64(k) / 100 * float64(unit))
			if up == 1 && at >= n {
				return at
			}
			if next := int64(float64(k+1) / 100 * float64(unit)); up == 0 && next > n {
				return at
			}
		}
	}
	return n
}

func scaled(n int64, unit int64, name string) string {
	if n%unit == 0 {
		return fmt.Sprintf("%d %s", n/unit, name)
	}
	return fmt.Sprintf("%.2f %s", float64(n)/float64(unit), name)
}
