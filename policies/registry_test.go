package policies_test

import (
	"strings"
	"testing"

	"allocsim/policies"
	_ "allocsim/policies/all"
)

// TestUnknownNames answers names that people use with the registered one, and
// no other name with a guess.
func TestUnknownNames(t *testing.T) {
	for name, want := range map[string]string{
		"jax": "bfc", "TensorFlow": "bfc", "rmm": "rmm-pool", "cudaMallocAsync": "stream", "cudamallocasync": "stream", "cuda_malloc_async": "stream",
		"pytorch": "torch", "torhc": "torch", "cpuy": "cupy", "rmm-poll": "rmm-pool", "arena": "rmm-arena",
		"tcmalloc": "", "": "", "x": "", "rmm-": "rmm-pool",
	} {
		_, err := policies.Parse(name + ":limit=1")
		if err == nil {
			t.Fatalf("%s is a policy", name)
		}
		_, hint, found := strings.Cut(err.Error(), "did you mean ")
		if got, _, _ := strings.Cut(hint, " ("); got != want || found != (want != "") {
			t.Errorf("%q: hint %q, want %q (%v)", name, got, want, err)
		}
	}
}
