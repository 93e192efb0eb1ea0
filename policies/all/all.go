// Package all registers every allocator of this module, one line each. Import
// it for its effect:
//
//	import _ "allocsim/policies/all"
package all

import (
	"allocsim/policies"
	"allocsim/policies/bfc"
	"allocsim/policies/cupy"
	"allocsim/policies/direct"
	"allocsim/policies/packing"
	"allocsim/policies/rmm"
	"allocsim/policies/stream"
	"allocsim/policies/torch"
)

func init() {
	policies.Register(bfc.Registration)
	policies.Register(cupy.Registration)
	policies.Register(direct.Registration)
	policies.Register(packing.Registration)
	policies.Register(rmm.Arena)
	policies.Register(rmm.Binning)
	policies.Register(rmm.Fixed)
	policies.Register(rmm.Pool)
	policies.Register(stream.Registration)
	policies.Register(torch.Registration)
}
