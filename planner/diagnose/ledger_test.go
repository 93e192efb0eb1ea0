package diagnose

import (
	"fmt"
	"strings"
	"testing"

	"allocsim/internal/bytesize"
)

// An account in GiB, as a message of PyTorch 2 with exact figures; negative
// numbers are not said.
func figures(total, free, allocated, private, cached, process int64, others ...int64) Message {
	gib := func(n int64) Quantity {
		if n < 0 {
			return Quantity{}
		}
		return Exact(n * bytesize.GiB)
	}
	m := Message{Framework: PyTorch, GPU: -1, Rank: -1, Requested: gib(1), Total: gib(total), Free: gib(free), Allocated: gib(allocated), PrivatePools: gib(private), Unallocated: gib(cached), Process: gib(process)}
	for i, o := range others {
		m.Others = append(m.Others, Process{int64(i + 1), gib(o)})
	}
	m.complete()
	return m
}

// TestProblems: figures that cannot be of one card, and why not.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		name    string
		m       Message
		problem Problem
		excess  int64 // GiB
	}{
		{"fits", figures(24, 1, 20, -1, 2, 23), "", 0},
		{"reserved more than the device", figures(24, 0, 28, -1, 2, -1), Virtual, 6},
		{"reserved more than this process has", figures(24, 4, 12, -1, 2, 8), Virtual, 6},
		{"free more than total", figures(16, 85, 9, -1, 1, -1), Shared, 69},
		{"reserved and free more than total", figures(24, 10, 20, -1, 2, -1), Impossible, 8},
		{"this process and free more than total", figures(24, 10, 10, -1, 2, 20), Impossible, 6},
		{"more in private pools than allocated", figures(24, 1, 10, 14, 2, -1), Impossible, 4},
		{"more processes than total", figures(24, 1, 10, -1, 2, 13, 8, 9), Impossible, 7},
		{"a listed process beside what is reserved, and too small to be it", figures(24, 1, 18, -1, 2, -1, 10), Impossible, 7},
	} {
		l := solve(c.m)
		if l.Problem != c.problem || l.Excess.Bytes != c.excess*bytesize.GiB {
			t.Errorf("%s: %q by %s, by hand %q by %d GiB", c.name, l.Problem, about(l.Excess), c.problem, c.excess)
		}
	}
}

// TestContainer: which of the listed processes is this one, and what that
// leaves for the others.
func TestContainer(t *testing.T) {
	for _, c := range []struct {
		name            string
		m               Message
		self            int64
		hidden          bool
		context, others string
	}{
		// 48 = 36 listed + 11 free + 1: nothing is left for 35 reserved beside it.
		{"one", figures(48, 11, 22, -1, 13, -1, 36), 1, true, "1 to 1", "0 to 0"},
		// 79 = 40 + 38 + 1 free; 37 are reserved in one of the two.
		{"two that may be it", figures(79, 1, 30, -1, 7, -1, 40, 38), 0, true, "1 to 3", "38 to 40"},
		// 20 cannot hold 37.
		{"two, one too small", figures(79, 10, 30, -1, 7, -1, 38, 20), 1, true, "1 to 1", "20 to 20"},
		// Either would do, but one leaves a context of 1 and the other one of 40.
		{"two, one much larger", figures(120, 1, 20, -1, 9, -1, 30, 69), 1, true, "1 to 1", "69 to 69"},
		// 80 = 20 reserved + 1 + 40 listed + 19 free: the listed one is another.
		{"another", figures(80, 19, 15, -1, 5, -1, 40), 0, false, "1 to 1", "40 to 40"},
		// This process is named: no guess.
		{"named", figures(80, 2, 15, -1, 5, 21, 57), 0, false, "1 to 1", "57 to 57"},
	} {
		l := solve(c.m)
		span := func(q Quantity) string {
			return fmt.Sprintf("%d to %d", q.Low()/bytesize.GiB, q.High()/bytesize.GiB)
		}
		if l.Problem != "" || l.Self != c.self || l.Hidden != c.hidden || span(l.Context) != c.context || span(l.Others) != c.others {
			t.Errorf("%s: %q self %d %v, context %s, others %s; by hand %+v", c.name, l.Problem, l.Self, l.Hidden, span(l.Context), span(l.Others), c)
		}
		// Never the advice to stop what may be this job.
		for _, a := range Diagnose(c.m, Options{}).Advice {
			if l.Self != 0 && strings.Contains(a, fmt.Sprintf("process %d with", l.Self)) {
				t.Errorf("%s: %s", c.name, a)
			}
		}
	}
}

// TestTensors: PyTorch counts what is free in private pools as allocated.
func TestTensors(t *testing.T) {
	l := solve(figures(184, 0, 181, 71, 1, 183))
	if l.Tensors != Exact(110*bytesize.GiB) || l.Private != Exact(71*bytesize.GiB) || l.Cached != Exact(bytesize.GiB) || l.room() != Exact(bytesize.GiB) {
		t.Errorf("%+v", l)
	}
}
