package options

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"allocsim/internal/bytesize"
)

func TestSet(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"size=1024KiB":                    "size=1MiB",
		"size=2KiB":                       "", // the default
		"share=12.5%,flag=on":             "share=12.5%,flag=true",
		"share=3 GB":                      "share=3000000000",
		"word=big , number=3":             "number=3,word=big",
		"top=max":                         "", // the default
		"top=64MiB":                       "top=64MiB",
		"fraction=0.50":                   "fraction=0.5",
		"size=0":                          "error: a size from 1KiB",
		"size=x":                          "error: option size",
		"share=101%":                      "error: a share such as 50%",
		"share=NaN%":                      "error: a share such as 50%",
		"fraction=2":                      "error: from 0 to 1",
		"fraction=nan":                    "error: from 0 to 1",
		"number=11":                       "error: from 1 to 10",
		"flag=perhaps":                    "error: true or false",
		"word=small":                      "error: big or bigger",
		"flag":                            "error: has no value",
		"flag=1,flag=0":                   "error: given twice",
		"colour=red":                      "error: unknown option",
		"top=min":                         "error: option top",
		"size=99999999999999999999999TiB": "error: out of range",
	} {
		s := Parse(text, "size", "share", "flag", "word", "number", "top", "fraction")
		size, share, fraction, flag, word, number, top, f := int64(2048), int64(0), 0.0, false, "none", int64(1), int64(1)<<60, 0.0
		s.Size("size", &size, 1024)
		s.SizeOrPercent("share", &share, &fraction)
		s.Bool("flag", &flag)
		s.Int("number", &number, 1, 10)
		s.Choice("word", &word, "big", "bigger")
		s.SizeOrWord("top", &top, "max", 1<<60)
		s.Fraction("fraction", &f)
		got := s.Normal()
		if err := s.Err(); err != nil {
			got = "error: " + err.Error()
			if strings.HasPrefix(want, "error: ") && strings.Contains(got, strings.TrimPrefix(want, "error: ")) {
				continue
			}
		}
		if got != want {
			t.Errorf("%s: %s, expected %s", text, got, want)
		}
	}
}

// TestSize checks that what Size writes reads back exactly.
func TestSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<40).Draw(t, "n") << rapid.IntRange(0, 20).Draw(t, "shift")
		if got, err := bytesize.Parse(Size(n)); err != nil || got != n {
			t.Fatalf("%d is written %s and read %d, %v", n, Size(n), got, err)
		}
	})
}
