package sim

import (
	"fmt"
	"math"

	"allocsim/policies"
)

// Machine says how much memory an allocator may take, and who says so. The
// device refuses what exceeds Capacity; the allocator itself refuses what
// exceeds Limit. These are different questions: at a limit PyTorch collects
// garbage and looks at what it holds, at a full device it looks at what the
// driver answers.
//
// The zero Machine is unlimited.
type Machine struct {
	// Capacity is the bytes the allocator can get from the device: the card
	// less the CUDA context and other users. 0 = unlimited.
	Capacity int64
	// Total is the device's bytes as the CUDA runtime reports them
	// (totalGlobalMem): the base of Fraction, and what expandable segments
	// reserve address space by. 0 = not said; see Resolve.
	Total int64
	// Space stands for Total in what expandable segments reserve address space
	// by, where Total is not said but the device is known to be larger than
	// Capacity, or not known to be smaller. 0 = not said.
	Space int64
	// Limit is the most bytes the allocator takes, by its own rule; it takes
	// precedence over Fraction. 0 = from Fraction.
	Limit int64
	// Fraction is set_per_process_memory_fraction's argument in [0,1]; 0 = not
	// called. A fraction in the policy's own options applies when this is 0.
	Fraction float64
}

// On is the machine of the same program on a device of which the allocator can
// get capacity bytes and which reports total bytes (0 = not said; see Resolve).
// What limited the allocator on the old device does not carry over.
func On(capacity, total int64) Machine { return Machine{Capacity: capacity, Total: total} }

// WithFraction is m under another memory fraction, in place of any limit.
func (m Machine) WithFraction(f float64) Machine {
	m.Limit, m.Fraction = 0, f
	return m
}

// Resolve works out what m leaves open. recorded is the device's bytes that a
// recording names, 0 = unknown.
//
// Limit comes from the fraction that m or else the policy sets, of Total; where
// that is not said, of Capacity (a device of that size is meant), else of
// recorded. Total itself is then Capacity, too; but PyTorch looks at it for
// address space only, and that does not shrink with what is free: there
// Capacity is a part of the recorded device, unless it exceeds that.
//
// The error says that a fraction is out of range or lacks the device's size.
func (m Machine) Resolve(spec *policies.Spec, recorded int64) (Machine, error) {
	base := m.Total
	if base == 0 {
		base = m.Capacity
	}
	if base == 0 {
		base = recorded
	}
	if m.Total == 0 {
		m.Total = base
		if spec != nil && spec.LimitOf != nil {
			m.Total = max(m.Capacity, recorded, m.Space)
		}
	}
	fraction := m.Fraction
	if fraction == 0 && spec != nil {
		fraction = spec.Fraction
	}
	if m.Limit != 0 || fraction == 0 {
		return m, nil
	}
	switch {
	case fraction < 0 || fraction > 1 || math.IsNaN(fraction):
		return m, fmt.Errorf("a memory fraction is between 0 and 1, not %v", fraction)
	case base == 0:
		return m, fmt.Errorf("a memory fraction of %v needs the device's size: give --capacity or --gpu", fraction)
	case spec != nil && spec.LimitOf != nil:
		m.Limit = spec.LimitOf(fraction, base)
	case fraction < 1:
		m.Limit = int64(fraction * float64(base))
	}
	if m.Limit == 0 && fraction < 1 {
		m.Limit = 1 // less than a byte, but not "no limit"
	}
	return m, nil
}

// Room is the bytes that a resolved machine leaves the allocator: the lesser of
// Capacity and Limit. 0 = unlimited.
func (m Machine) Room() int64 {
	if m.Limit > 0 && (m.Capacity <= 0 || m.Limit < m.Capacity) {
		return m.Limit
	}
	return max(m.Capacity, 0)
}

// LimitDecides reports that the allocator's own limit, and not the device, is
// what leaves it Room.
func (m Machine) LimitDecides() bool {
	return m.Limit > 0 && m.Room() == m.Limit && m.Limit != m.Capacity
}
