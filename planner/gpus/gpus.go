// Package gpus is the catalogue of graphics cards: how many bytes the CUDA
// runtime really reports for each, how far that moves between drivers, what a
// process pays besides its allocator, and the MIG slices a card can be cut
// into.
//
// The number on the box is not the number an allocator gets. An "80 GB" H100
// shows 81,559 MiB in nvidia-smi, reports 81,090 MiB to a program (the driver
// keeps the rest), and a PyTorch process spends another 520 to 770 MiB on the
// CUDA context, kernels and libraries before its first tensor. The reported
// total of one and the same card moves by up to 200 MiB with the driver's
// version. So a card has a range and not a number, and a verdict inside that
// range is "tight", not "fits".
//
// The data are embedded (catalogue.csv). They were collected from public
// material, none of them measured for this catalogue; each row carries its
// evidence and how good it is. What nobody has published stays empty: the zero
// value of a field means unknown. A user's own file extends or corrects the
// catalogue ([Catalogue.Extend]), and one's own torch.cuda.mem_get_info()
// always beats it.
package gpus

import (
	"fmt"
	"strings"

	"allocsim/internal/bytesize"
)

// Confidence says how a card's total is known.
type Confidence string

// The confidences.
const (
	// Exact: the runtime printed the total in bytes.
	Exact Confidence = "exact"
	// Message: the runtime printed it as MiB (± 1 MiB) or as GiB with two
	// decimals (± 5 MiB).
	Message Confidence = "message"
	// NvidiaSMI: only the total of nvidia-smi (NVML) is known, which is more
	// than the runtime reports on Linux: High is an upper bound, Total and Low
	// are unknown.
	NvidiaSMI Confidence = "nvidia-smi"
	// Measured: the user's own reading of the very card in question. No margin
	// for another driver applies.
	Measured Confidence = "measured"
)

// Card is a graphics card, or a MIG slice of one. A zero number means unknown.
type Card struct {
	// Name is unique in a catalogue. A slice is called "CARD:PROFILE".
	Name       string
	Vendor     string // "NVIDIA", "AMD"
	Generation string // such as "Ampere"
	MemoryKind string // such as "HBM3"; contains "unified" when shared with the host
	MarketedGB int64  // the number in the card's name

	// Total is the bytes that cudaMemGetInfo and torch's total_memory report,
	// on the newest Linux driver seen.
	Total int64
	// Low and High bound Total over the drivers and ECC settings seen (Linux).
	Low, High int64
	// Confidence says how these are known.
	Confidence Confidence
	// NVML is the total that nvidia-smi shows, in bytes.
	NVML int64
	// SMs is the number of streaming multiprocessors (cudaDeviceProp's
	// multiProcessorCount, from the makers' data sheets); 0 for slices and AMD.
	SMs int
	// Overhead is what a process takes besides its allocator.
	Overhead Overhead

	// Profile is the MIG profile when this is a slice, else empty.
	Profile string
	// Profiles are the MIG slices the card can be cut into, in the catalogue's
	// order.
	Profiles []Profile

	besidesLow, besidesHigh int64 // see With

	// Aliases are other names that Find takes.
	Aliases []string
	// Note is a caveat worth showing; Evidence says where the total was read.
	Note, Evidence string
}

// Profile is a MIG profile of a card.
type Profile struct {
	Name string // such as "1g.10gb"
	// Total, Low and High are bytes as in Card: what torch's total_memory is
	// inside an instance, which equals the size that nvidia-smi mig -lgip
	// lists where both were seen. 0 = not found.
	Total, Low, High int64
	Confidence       Confidence
	Evidence         string
}

// Overhead is the device memory of one process outside its allocator: driver
// context, loaded kernels, library handles. In bytes, for a single-GPU process
// of PyTorch 2.1 or newer with CUDA 12 or newer. NCCL takes 1 to 3 GiB more.
type Overhead struct {
	Low, High int64
	// Source says which readings the range rests on.
	Source string
	// Known is false when there is no reading for this card or its relatives
	// and the range is that of all cards.
	Known bool
}

// Bounds used where the catalogue has nothing.
const (
	// anyOverheadLow and anyOverheadHigh are the range over all cards with a
	// reading, in bytes.
	anyOverheadLow  = 110 * bytesize.MiB
	anyOverheadHigh = 770 * bytesize.MiB
	// largestReserve is the largest share of nvidia-smi's total that a driver
	// was seen to keep (RTX 3060 Ti: 350 of 8,192 MiB), rounded up.
	largestReserve = 0.045
	// NameMargin is the bytes by which a card's name alone cannot settle a
	// question: the largest difference seen between drivers of one card
	// (A100 80GB, 200 MiB).
	NameMargin = 200 * bytesize.MiB
)

// Unified reports that the memory is shared with the host, so that the total
// says little about what a program can get.
func (c Card) Unified() bool { return strings.Contains(c.MemoryKind, "unified") }

// Usable is the range of bytes that an allocator can take from the otherwise
// empty card: the total less the overhead, both at their least and most
// favourable. low is the capacity to plan with. ok is false when nothing is
// known about the card's total.
//
// Where only nvidia-smi's total is known, low assumes that the driver keeps
// the largest share that it keeps on any card in the catalogue (4.5 %).
func (c Card) Usable() (low, high int64, ok bool) {
	if c.High <= 0 {
		return 0, 0, false
	}
	low = c.Low
	if low == 0 {
		low = int64(float64(c.High) * (1 - largestReserve))
	}
	return max(low-c.Overhead.High-c.besidesHigh, 0), max(c.High-c.Overhead.Low-c.besidesLow, 0), true
}

// Share is what one process takes of a card besides its allocator, in bytes,
// beyond the Overhead that the catalogue knows.
type Share struct {
	Name string `json:"name"`
	Low  int64  `json:"low"`
	High int64  `json:"high"`
}

// NCCL is what the communicators of a process with several ranks take: 1 to 3
// GiB (spec gpus.md), by version, topology and NCCL_BUFFSIZE.
var NCCL = Share{Name: "NCCL", Low: 1 << 30, High: 3 << 30}

// With is the card with shares taken off what an allocator can get. They do not
// widen the margin that a verdict of Fits needs: the high end of each is taken
// off already.
func (c Card) With(shares []Share) Card {
	for _, s := range shares {
		c.besidesLow += s.Low
		c.besidesHigh += s.High
	}
	return c
}

// Slices are the card's MIG slices as cards of their own, those of unknown
// size included. A slice's overhead reaches from the smallest of any card (a
// context grows with the number of multiprocessors) to that of the whole card.
func (c Card) Slices() []Card {
	out := make([]Card, 0, len(c.Profiles))
	for _, p := range c.Profiles {
		out = append(out, c.slice(p))
	}
	return out
}

func (c Card) slice(p Profile) Card {
	s := c
	s.Name = c.Name + ":" + p.Name
	s.Profile, s.Profiles, s.Aliases = p.Name, nil, nil
	s.MarketedGB, s.NVML, s.SMs, s.Note = 0, 0, 0, ""
	s.Total, s.Low, s.High = p.Total, p.Low, p.High
	s.Confidence, s.Evidence = p.Confidence, p.Evidence
	s.Overhead = Overhead{
		Low:    min(anyOverheadLow, c.Overhead.Low),
		High:   c.Overhead.High,
		Source: "no reading inside a slice; from the smallest of any card to that of the whole card",
	}
	return s
}

// Verdict is the answer to "does it fit?".
type Verdict string

// The verdicts.
const (
	// Fits: with room to spare on any driver seen.
	Fits Verdict = "fits"
	// Tight: it depends on the driver, the libraries loaded or luck; ask the
	// card itself (torch.cuda.mem_get_info()).
	Tight Verdict = "tight"
	// No: more than the card has on any driver seen.
	No Verdict = "no"
	// Unknown: nothing is known about the card's memory.
	Unknown Verdict = "unknown"
	// Undecidable: the card may do, but the recording does not hold what would
	// show it.
	Undecidable Verdict = "undecidable"
)

// Assessment is a verdict with its numbers, in bytes.
type Assessment struct {
	Verdict Verdict `json:"verdict"`
	// Usable is the low end of Card.Usable, UsableHigh the high end.
	Usable     int64 `json:"usable"`
	UsableHigh int64 `json:"usable_high"`
	// Headroom is Usable less the need; negative when it depends on the driver
	// or does not fit.
	Headroom int64 `json:"headroom"`
	// Margin is the headroom below which the verdict is Tight.
	Margin int64 `json:"margin"`
	// Reason is one sentence.
	Reason string `json:"reason"`
}

// Expandable reports whether PyTorch's expandable segments work on the card:
// Tegra (Jetson) has no virtual-memory calls, and PyTorch ends with an error.
func (c Card) Expandable() bool { return !strings.HasPrefix(c.Name, "Jetson") }

// Margin is the headroom, in bytes, that a verdict of Fits needs: the width of
// the overhead's range (it was read from few processes; other libraries take
// as much again) plus NameMargin unless the total was measured on the card
// itself.
func (c Card) Margin() int64 {
	m := c.Overhead.High - c.Overhead.Low
	if c.Confidence != Measured {
		m += NameMargin
	}
	return m
}

// Assess says whether a process whose allocator takes reservedPeak bytes from
// the device fits the otherwise empty card.
func (c Card) Assess(reservedPeak int64) Assessment {
	low, high, ok := c.Usable()
	if !ok {
		return Assessment{Verdict: Unknown, Reason: "no total is known for this card; give --capacity from torch.cuda.mem_get_info()"}
	}
	a := Assessment{Usable: low, UsableHigh: high, Headroom: low - reservedPeak, Margin: c.Margin()}
	switch {
	case reservedPeak > high:
		a.Verdict = No
		a.Reason = fmt.Sprintf("needs %s more than the card can give at best", bytesize.Format(reservedPeak-high))
	case c.Unified():
		a.Verdict = Tight
		a.Reason = "the memory is shared with the host: what is free decides, not the total"
	case a.Headroom < 0:
		a.Verdict = Tight
		a.Reason = fmt.Sprintf("inside the range of what the card can give (%s to %s): it depends on driver and libraries", bytesize.Format(low), bytesize.Format(high))
	case a.Headroom < a.Margin:
		a.Verdict = Tight
		a.Reason = fmt.Sprintf("%s of headroom is less than the %s that driver and libraries may take", bytesize.Format(a.Headroom), bytesize.Format(a.Margin))
	default:
		a.Verdict = Fits
		a.Reason = fmt.Sprintf("%s of headroom", bytesize.Format(a.Headroom))
	}
	return a
}
