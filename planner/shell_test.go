package planner

import (
	"os/exec"
	"testing"
)

// TestShellWord lets a shell read the line that people paste.
func TestShellWord(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	for _, conf := range []string{
		"expandable_segments:True,large_segment_size_mb:64",
		"roundup_power2_divisions:[256:2,2048:4,>:2]",
		"max_split_size_mb:64,roundup_power2_divisions:[1:0,1024:8]",
	} {
		cmd := exec.Command(sh, "-c", "export PYTORCH_CUDA_ALLOC_CONF="+shellWord(conf)+"; printf %s \"$PYTORCH_CUDA_ALLOC_CONF\"")
		cmd.Dir = t.TempDir()
		out, err := cmd.Output()
		if err != nil || string(out) != conf {
			t.Errorf("%s comes out as %q, %v", conf, out, err)
		}
	}
	if got := shellWord("expandable_segments:True"); got != "expandable_segments:True" {
		t.Errorf("quoted without need: %s", got)
	}
}
