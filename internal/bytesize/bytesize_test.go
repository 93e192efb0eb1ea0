package bytesize

import (
	"math"
	"testing"
)

func TestFormat(t *testing.T) {
	for n, want := range map[int64]string{
		0:                  "0 B",
		1023:               "1023 B",
		KiB:                "1 KiB",
		MiB - 1:            "1.00 MiB",
		GiB - 6<<10:        "1023.99 MiB",
		GiB - 1:            "1.00 GiB",
		20 * MiB:           "20 MiB",
		-3 * GiB / 2:       "-1.50 GiB",
		math.MaxInt64:      "8388608.00 TiB",
		math.MinInt64:      "-8388608.00 TiB",
		-(TiB - 1):         "-1.00 TiB",
		5*TiB + TiB/4:      "5.25 TiB",
		1023*KiB + 7*100:   "1023.68 KiB",
		-math.MaxInt64 + 1: "-8388608.00 TiB",
	} {
		if got := Format(n); got != want {
			t.Errorf("Format(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	for s, want := range map[string]int64{
		"24GiB": 24 * GiB, "24 gb": 24e9, "1.5g": GiB * 3 / 2, "123": 123, "80_000MiB": 80000 * MiB, "1e3": 1000, ".5KiB": 512, "-0": 0,
		"": -1, " ": -1, "1.5.2GiB": -1, "-5": -1, "nan": -1, "inf": -1, "1e309": -1, "1,5GiB": -1, "9223372036854775807": -1, "24GiBs": -1, "8388608TiB": -1,
	} {
		if got, err := Parse(s); (err != nil) != (want < 0) || want >= 0 && got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
}
