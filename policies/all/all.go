// Package all registers every allocator of this module, one line each. Import
// it for its effect:
//
//	import _ "allocsim/policies/all"
package all

import (
	"allocsim/policies"
	"allocsim/policies/direct"
	"allocsim/policies/torch"
)

func init() {
	policies.Register(direct.Registration)
	policies.Register(torch.Registration)
}
