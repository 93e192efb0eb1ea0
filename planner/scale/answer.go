package scale

import (
	"context"

	"allocsim/sim"
)

// Question is what recordings of one program are asked about values that
// nobody ran.
type Question struct {
	// Values are those to predict.
	Values []int64
	// Config is the allocator and the machine.
	Config sim.Config
	// Largest asks for the largest value that fits, too; the machine must have
	// a bound then.
	Largest bool
	// Progress, if not nil, is told how many of the values are predicted.
	Progress func(done, total int64)
}

// Answer is the answer to a Question; its JSON form is that of the `scale`
// command.
type Answer struct {
	Vary        string       `json:"vary"`
	Predictions []Prediction `json:"predictions"`
	// Aligned is the smallest share of matched allocations over all Pairs.
	Aligned float64 `json:"aligned"`
	Pairs   []Pair  `json:"pairs"`
	// LargestFitting is Largest.Value; both are absent unless asked for.
	LargestFitting *int64   `json:"largest_fitting,omitempty"`
	Largest        *Largest `json:"largest,omitempty"`
	// Backtest is absent where a recording cannot be predicted from the others.
	Backtest *Backtest `json:"backtest,omitempty"`
	// Notes are caveats about the recordings; those about a value are with it.
	Notes []string `json:"notes"`
}

// Completes reports that every value asked for runs to its end.
func (a *Answer) Completes() bool {
	for i := range a.Predictions {
		if !a.Predictions[i].Completed {
			return false
		}
	}
	return true
}

// Answer predicts the values asked for, finds the largest that fits, and says
// how well the model predicts a recording that it has. A *Refusal says why the
// recordings do not determine a value.
func (m *Model) Answer(ctx context.Context, q Question) (*Answer, error) {
	a := &Answer{Vary: m.opt.Vary, Predictions: []Prediction{}, Aligned: m.Aligned(), Pairs: m.Pairs(), Notes: append([]string{}, m.Notes()...)}
	for i, v := range q.Values {
		p, err := m.Predict(ctx, v, q.Config)
		if err != nil {
			return nil, err
		}
		a.Predictions = append(a.Predictions, p)
		if q.Progress != nil {
			q.Progress(int64(i+1), int64(len(q.Values)))
		}
	}
	if q.Largest {
		l, err := m.Largest(ctx, q.Config, 0, 0)
		if err != nil {
			return nil, err
		}
		a.LargestFitting, a.Largest = &l.Value, &l
	}
	if b, err := m.Backtest(ctx, q.Config); err == nil {
		a.Backtest = &b
	}
	return a, nil
}
