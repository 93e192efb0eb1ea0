package torchengine

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// A script that could not be written whole is not run.
func TestScriptCutShort(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	python := real(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4096, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := Replay(t.Context(), Job{Trace: sample(t), Python: python})
	if e := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, syscall.EFBIG) || errors.Is(err, ErrNoTorch) {
		t.Errorf("4,096 bytes of the script were written: %v", err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
