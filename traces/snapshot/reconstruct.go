package snapshot

import "allocsim/traces"

func (c *converter) fromTheMiddle(con *contradiction) (*traces.Trace, error)  { return nil, con }
func (c *converter) startState(o *output, start []startSegment) *traces.State { return nil }
