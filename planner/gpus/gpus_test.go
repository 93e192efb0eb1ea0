package gpus

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"allocsim/internal/bytesize"
)

func describe(b *strings.Builder, c Card) {
	fmt.Fprintf(b, "%s: total %d, low %d, high %d (%s)\n", c.Name, c.Total, c.Low, c.High, c.Confidence)
	fmt.Fprintf(b, "  overhead %s to %s: %s\n", bytesize.Format(c.Overhead.Low), bytesize.Format(c.Overhead.High), c.Overhead.Source)
	if low, high, ok := c.Usable(); ok {
		fmt.Fprintf(b, "  usable %d to %d\n", low, high)
	}
	if c.Note != "" {
		fmt.Fprintf(b, "  note: %s\n", c.Note)
	}
}

// TestTranscripts runs testdata/*.txt. A "catalogue" or "extend" command
// replaces the catalogue that the commands after it use.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, path := range files {
		cat := Default()
		var prices Prices
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			switch d.Cmd {
			case "find": // one name a line
				for name := range strings.SplitSeq(d.Input, "\n") {
					if c, err := cat.Find(name); err != nil {
						fmt.Fprintf(&b, "%s\n", err)
					} else {
						fmt.Fprintf(&b, "%s -> %s\n", name, c.Name)
					}
				}
			case "show":
				for name := range strings.SplitSeq(d.Input, "\n") {
					c, err := cat.Find(name)
					if err != nil {
						fmt.Fprintf(&b, "%s\n", err)
						continue
					}
					describe(&b, c)
				}
			case "slices":
				c, err := cat.Find(d.Input)
				if err != nil {
					return err.Error() + "\n"
				}
				for _, s := range c.Slices() {
					describe(&b, s)
				}
			case "assess": // "SIZE CARD" lines
				for line := range strings.SplitSeq(d.Input, "\n") {
					size, name, _ := strings.Cut(line, " ")
					need, err := bytesize.Parse(size)
					if err != nil {
						t.Fatal(err)
					}
					c, err := cat.Find(name)
					if err != nil {
						t.Fatal(err)
					}
					a := c.Assess(need)
					fmt.Fprintf(&b, "%s %s: %s, headroom %d: %s\n", size, c.Name, a.Verdict, a.Headroom, a.Reason)
				}
			case "catalogue", "extend":
				load := Load
				if d.Cmd == "extend" {
					load = cat.Extend
				}
				c, err := load(strings.NewReader(d.Input), "my.csv")
				if err != nil {
					return err.Error() + "\n"
				}
				cat = c
				fmt.Fprintf(&b, "%d cards\n", len(cat.All()))
			case "prices":
				var err error
				if prices, err = cat.LoadPrices(strings.NewReader(d.Input), "prices.csv"); err != nil {
					return err.Error() + "\n"
				}
				for _, c := range cat.All() {
					for _, c := range append([]Card{c}, c.Slices()...) {
						if p, ok := prices[c.Name]; ok {
							fmt.Fprintf(&b, "%s: %g %s\n", c.Name, p.Amount, p.Unit)
						}
					}
				}
			default:
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return b.String()
		})
	}
}

// TestEmbedded holds the data to what they claim.
func TestEmbedded(t *testing.T) {
	cards := All()
	if len(cards) != 87 {
		t.Errorf("%d cards, want 87", len(cards))
	}
	slices := 0
	for _, c := range cards {
		got, err := Find(c.Name)
		if err != nil || got.Name != c.Name {
			t.Errorf("Find(%q) = %q, %v", c.Name, got.Name, err)
		}
		for _, device := range []string{"NVIDIA " + c.Name, strings.ToLower(c.Name)} {
			if got, err := Find(device); err != nil || got.Name != c.Name {
				t.Errorf("Find(%q) = %q, %v", device, got.Name, err)
			}
		}
		for _, a := range c.Aliases {
			if got, err := Find(a); err != nil || got.Name != c.Name {
				t.Errorf("Find(%q) = %q, %v; want %q", a, got.Name, err, c.Name)
			}
		}
		// A card's total lies within 15 % of what its name says, in GiB: a
		// slipped digit does not.
		if c.High > 0 {
			if r := float64(c.High) / float64(c.MarketedGB<<30); r < 0.85 || r > 1.02 {
				t.Errorf("%s: %d bytes for %d GB", c.Name, c.High, c.MarketedGB)
			}
		}
		if c.NVML > 0 && (c.Low > c.NVML || c.Total > 0 && float64(c.NVML-c.Total) > largestReserve*float64(c.NVML)) {
			t.Errorf("%s: nvidia-smi %d, reported %d", c.Name, c.NVML, c.Total)
		}
		if c.Overhead.Low <= 0 || c.Overhead.Low > c.Overhead.High || c.Overhead.Source == "" || c.Evidence == "" {
			t.Errorf("%s: overhead %+v, evidence %q", c.Name, c.Overhead, c.Evidence)
		}
		for _, s := range c.Slices() {
			slices++
			if got, err := Find(s.Name); err != nil || got.Name != s.Name {
				t.Errorf("Find(%q) = %q, %v", s.Name, got.Name, err)
			}
			if got, err := Find("NVIDIA " + c.Name + " MIG " + s.Profile); err != nil || got.Name != s.Name {
				t.Errorf("Find MIG %q = %q, %v", s.Name, got.Name, err)
			}
			if s.High > c.NVML && c.NVML > 0 {
				t.Errorf("%s is larger than its card", s.Name)
			}
		}
	}
	if slices == 0 {
		t.Error("no slices")
	}
}

// TestSpecFile: the collected readings load as a user's file and agree with
// the embedded catalogue.
func TestSpecFile(t *testing.T) {
	f, err := os.Open(filepath.Join("..", "..", "..", "shared", "spec", "gpus.csv"))
	if err != nil {
		t.Skipf("the collected readings are not beside the repository: %v", err)
	}
	defer f.Close()
	c, err := Load(f, "gpus.csv")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range c.All() {
		got, err := Find(want.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		if got.Total != want.Total || got.High != want.High || got.Low != want.Low {
			t.Errorf("%s: %d %d %d, want %d %d %d", want.Name, got.Total, got.Low, got.High, want.Total, want.Low, want.High)
		}
	}
}

// TestAssess: a verdict only ever gets worse as the need grows, and follows
// from the numbers shown with it.
func TestAssess(t *testing.T) {
	order := map[Verdict]int{Fits: 0, Tight: 1, No: 2}
	cards := All()
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(cards).Draw(t, "card")
		low, high, ok := c.Usable()
		if !ok {
			if v := c.Assess(1).Verdict; v != Unknown {
				t.Fatalf("%s: %s", c.Name, v)
			}
			return
		}
		if low >= high {
			t.Fatalf("%s: usable %d to %d", c.Name, low, high)
		}
		need := rapid.Int64Range(0, 2*high).Draw(t, "need")
		more := rapid.Int64Range(need, 2*high).Draw(t, "more")
		a, b := c.Assess(need), c.Assess(more)
		if order[a.Verdict] > order[b.Verdict] {
			t.Fatalf("%s: %d is %s, %d is %s", c.Name, need, a.Verdict, more, b.Verdict)
		}
		if (a.Verdict == No) != (need > high) || a.Verdict == Fits && a.Headroom < a.Margin {
			t.Fatalf("%s: %d: %+v", c.Name, need, a)
		}
	})
}

func FuzzFind(f *testing.F) {
	for _, s := range []string{"rtx 4090", "A100 80GB", "h100:1g.10gb", "", "1g.10gb", "ti super d xt sff ada"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Find(s)
		if (err == nil) == (c.Name == "") {
			t.Errorf("Find(%q) = %q, %v", s, c.Name, err)
		}
	})
}

func FuzzLoad(f *testing.F) {
	f.Add("name,reported_bytes\nA,24GiB\n")
	f.Add("name,profile,reported_low,reported_high\nA,,1,2\nA,1g.5gb,,7\n")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Default().Extend(strings.NewReader(s), "f")
		if err != nil {
			return
		}
		for _, card := range c.All() {
			for _, card := range append(card.Slices(), card) {
				if card.Low < 0 || card.Low > card.High || card.Total > card.High || card.Overhead.Low > card.Overhead.High {
					t.Errorf("%+v", card)
				}
				card.Assess(1 << 30)
			}
		}
	})
}
