package gpus

import (
	"errors"
	"strings"
	"testing"

	"allocsim/internal/bytesize"
)

// TestVerdictByHand: a card whose total is between 10,000 and 10,100 MiB, and a
// process that takes between 300 and 500 MiB besides its allocator. So the
// allocator gets 9,500 MiB for sure and 9,800 at best. The margin is the 200
// MiB by which processes differ and, unless the card itself was measured, the
// 200 MiB by which drivers do: what needs up to 9,100 MiB (measured: 9,300)
// fits, up to 9,800 is tight, more is no.
func TestVerdictByHand(t *testing.T) {
	const mib = bytesize.MiB
	card := Card{Name: "Card", Total: 10050 * mib, Low: 10000 * mib, High: 10100 * mib, Confidence: Exact, Overhead: Overhead{Low: 300 * mib, High: 500 * mib}}
	measured, shared, smi, unknown, tiny := card, card, card, card, card
	measured.Confidence = Measured
	shared.MemoryKind = "LPDDR5X unified"
	// Only nvidia-smi's 10,000 MiB are known: a driver keeps up to 4.5 % of
	// them, so the allocator gets 9,550 - 500 = 9,050 MiB for sure.
	smi.Total, smi.Low, smi.High, smi.Confidence = 0, 0, 10000*mib, NvidiaSMI
	unknown.Total, unknown.Low, unknown.High = 0, 0, 0
	tiny.Total, tiny.Low, tiny.High = 200*mib, 200*mib, 200*mib
	for _, c := range []struct {
		name     string
		card     Card
		need     int64 // MiB
		verdict  Verdict
		headroom int64 // MiB
	}{
		{"with room", card, 9000, Fits, 500},
		{"exactly the margin", card, 9100, Fits, 400},
		{"less than the margin", card, 9101, Tight, 399},
		{"no headroom", card, 9500, Tight, 0},
		{"in the range", card, 9600, Tight, -100},
		{"at best, exactly", card, 9800, Tight, -300},
		{"more than at best", card, 9801, No, -301},
		{"measured, exactly the margin", measured, 9300, Fits, 200},
		{"measured, less", measured, 9301, Tight, 199},
		{"shared with the host", shared, 1000, Tight, 8500},
		{"shared, more than at best", shared, 9801, No, -301},
		{"nvidia-smi, exactly the margin", smi, 8650, Fits, 400},
		{"nvidia-smi, less", smi, 8651, Tight, 399},
		{"nvidia-smi, at best", smi, 9700, Tight, -650},
		{"nvidia-smi, more", smi, 9701, No, -651},
		{"unknown", unknown, 1, Unknown, 0},
		{"less than the overhead", tiny, 1, No, -1},
	} {
		a := c.card.Assess(c.need * mib)
		if a.Verdict != c.verdict || a.Headroom != c.headroom*mib {
			t.Errorf("%s: %d MiB are %s with %d MiB of headroom, want %s with %d", c.name, c.need, a.Verdict, a.Headroom/mib, c.verdict, c.headroom)
		}
		if a.Reason == "" {
			t.Errorf("%s: no reason", c.name)
		}
	}
	if _, _, ok := unknown.Usable(); ok {
		t.Error("an unknown total is usable")
	}
}

// TestBesides: of 10,000 MiB, of which a context takes 300 to 500, NCCL takes 100
// to 200 and something else 10 to 30 more.
func TestBesides(t *testing.T) {
	const mib = bytesize.MiB
	card := Card{Total: 10000 * mib, Low: 10000 * mib, High: 10000 * mib, Confidence: Exact, Overhead: Overhead{Low: 300 * mib, High: 500 * mib}}
	with := card.With([]Share{{Low: 100 * mib, High: 200 * mib}, {Low: 10 * mib, High: 30 * mib}})
	if low, high, ok := with.Usable(); !ok || low != 9270*mib || high != 9590*mib {
		t.Errorf("usable %d to %d MiB", low/mib, high/mib)
	}
	if low, _, _ := card.Usable(); low != 9500*mib {
		t.Error("the card itself is changed")
	}
}

// TestSliceByHand: a slice of 5 GiB of a card on which a process takes 300 to
// 500 MiB. In a slice it may take as little as on any card, 110 MiB.
func TestSliceByHand(t *testing.T) {
	const mib = bytesize.MiB
	card := Card{Name: "Card", Total: 10000 * mib, Low: 10000 * mib, High: 10000 * mib, Confidence: Exact,
		Overhead: Overhead{Low: 300 * mib, High: 500 * mib, Known: true},
		Profiles: []Profile{{Name: "1g.5gb", Total: 5000 * mib, Low: 4990 * mib, High: 5010 * mib, Confidence: Message}}}
	s := card.Slices()[0]
	low, high, ok := s.Usable()
	if !ok || low != (4990-500)*mib || high != (5010-110)*mib || s.Name != "Card:1g.5gb" || s.Total != 5000*mib {
		t.Errorf("%s: usable %d to %d MiB, %v", s.Name, low/mib, high/mib, ok)
	}
}

// TestNames looks names up in a catalogue of cards that are easily confused.
func TestNames(t *testing.T) {
	c, err := Load(strings.NewReader(`name,profile,reported_bytes,aliases
RTX 4060,,8GiB,
RTX 4060 Ti,,16GiB,
A100 PCIe 40GB,,40GiB,
A100 SXM4 80GB,,80GiB,A100-SXM4-80GB
A100 SXM4 80GB,1g.10gb,10GiB,
A100 PCIe 40GB,1g.5gb,5GiB,
RTX 3050 Ti,,4GiB,
L40,,48GiB,
L40 Active,,48GiB,
`), "cards.csv")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"NVIDIA GeForce RTX 4060":            "RTX 4060",
		"NVIDIA GeForce RTX 4060 Ti":         "RTX 4060 Ti",
		"rtx4060":                            "RTX 4060",
		"4060ti":                             "RTX 4060 Ti",
		"rtx 3050":                           "unknown", // a Ti is another card
		"3050 ti":                            "RTX 3050 Ti",
		"NVIDIA L40":                         "L40",
		"a100 sxm":                           "A100 SXM4 80GB",
		"NVIDIA A100-SXM4-80GB":              "A100 SXM4 80GB",
		"NVIDIA A100-SXM4-80GB MIG 1g.10gb":  "A100 SXM4 80GB:1g.10gb",
		"a100:1g.5gb":                        "A100 PCIe 40GB:1g.5gb",
		"a100":                               "ambiguous: A100 PCIe 40GB, A100 SXM4 80GB",
		"a100 pcie:1g.10gb":                  "no profile: 1g.5gb",
		"a100:3g.20gb":                       "no profile: 1g.5gb, 1g.10gb",
		"NVIDIA GeForce RTX 4060 Ti Laptop":  "unknown",
		"NVIDIA H100 80GB HBM3":              "unknown",
		"NVIDIA GeForce RTX 4060 MIG 1g.5gb": "no profile: ",
		"":                                   "unknown",
		strings.Repeat("a100", 33):           "unknown",
	} {
		card, err := c.Find(name)
		got := card.Name
		var e *NameError
		switch {
		case errors.As(err, &e) && e.Ambiguous:
			got = "ambiguous: " + strings.Join(e.Near, ", ")
		case e != nil && e.Profiles:
			got = "no profile: " + strings.Join(e.Near, ", ")
		case err != nil:
			got = "unknown"
		}
		if got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// TestOwnTotal: a user's plain total counts as measured on the card itself,
// and what the line leaves empty stays as the catalogue has it.
func TestOwnTotal(t *testing.T) {
	before, err := Find("rtx 4090")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Default().Extend(strings.NewReader("name,reported_bytes\nrtx 4090,23GiB\n"), "my.csv")
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.Find("rtx 4090")
	if err != nil {
		t.Fatal(err)
	}
	if after.Low != 23*bytesize.GiB || after.High != 23*bytesize.GiB || after.Confidence != Measured || after.Overhead != before.Overhead || after.MarketedGB != before.MarketedGB {
		t.Errorf("%+v", after)
	}
	if !before.Overhead.Known || before.Confidence == Measured {
		t.Errorf("the catalogue's own card is %+v", before)
	}
}

// TestExtendLeavesTheCatalogueAlone: a catalogue is shared by all that use it.
func TestExtendLeavesTheCatalogueAlone(t *testing.T) {
	c, err := Load(strings.NewReader("name,reported_bytes\nA,8GiB\n"), "a.csv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Extend(strings.NewReader("name,reported_bytes,profile\nA,4GiB,\nA,1GiB,1g.1gb\nB,2GiB,\n"), "b.csv"); err != nil {
		t.Fatal(err)
	}
	if cards := c.All(); len(cards) != 1 || cards[0].Total != 8*bytesize.GiB || len(cards[0].Profiles) != 0 {
		t.Errorf("%+v", cards)
	}
}
