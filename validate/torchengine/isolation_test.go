package torchengine

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// real is the machine's own Python; the tests below are about what it imports.
func real(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	return path
}

// trap fills dir with modules that leave a mark when they are imported.
func trap(t *testing.T, dir string) (mark string) {
	t.Helper()
	mark = filepath.Join(t.TempDir(), "mark")
	for _, module := range []string{"ctypes", "faulthandler", "gc", "json", "os", "threading", "time", "torch", "random"} {
		text := "open(" + strconv.Quote(mark) + ", 'a').write(" + strconv.Quote(module+"\n") + ")\n"
		if err := os.WriteFile(filepath.Join(dir, module+".py"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return mark
}

// with replays with another script in place of the package's own.
func with(t *testing.T, text string) (*Answer, error) {
	t.Helper()
	was := script
	t.Cleanup(func() { script = was })
	script = []byte(text)
	return Replay(context.Background(), Job{Trace: sample(t), Python: real(t)})
}

// answering is a script that answers with an expression as PyTorch's version.
func answering(expression string) string {
	return `
import json, os, sys
sys.stdin.read()
print(json.dumps({"torch": str(` + expression + `), "events": {"action": [], "addr": [], "size": [], "stream": []}}))
`
}

// A folder that others write to, such as the one for temporary files, the
// working directory and empty entries of PYTHONPATH, gives the script nothing
// to import.
func TestImportsNothingOfOthers(t *testing.T) {
	for what, place := range map[string]func(t *testing.T, dir string){
		"temporary folder": func(t *testing.T, dir string) { t.Setenv("TMPDIR", dir) },
		"working folder": func(t *testing.T, dir string) {
			t.Chdir(dir)
			t.Setenv("PYTHONPATH", string(os.PathListSeparator)+t.TempDir()+string(os.PathListSeparator))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			mark := trap(t, dir)
			python := real(t)
			place(t, dir)
			_, err := Replay(context.Background(), Job{Trace: sample(t), Python: python})
			if imported, e := os.ReadFile(mark); e == nil {
				t.Errorf("imported from a folder of others (%v): %q", err, strings.Fields(string(imported)))
			}
		})
	}
}

// The folder of the script is the user's alone and holds nothing else, so a
// Python that knows no safe path is safe as well; it is gone afterwards.
func TestScriptFolder(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	a, err := with(t, answering(`(oct(os.stat(os.path.dirname(__file__)).st_mode & 0o777), oct(os.stat(__file__).st_mode & 0o777), os.listdir(os.path.dirname(__file__)), os.path.dirname(os.path.dirname(__file__)))`))
	if err != nil {
		t.Fatal(err)
	}
	if want := "('0o700', '0o600', ['replay.py'], '" + tmp + "')"; a.Torch != want {
		t.Errorf("folder, file, content, place:\n%s\nwant\n%s", a.Torch, want)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// A PyTorch that the user installed for themselves or named in PYTHONPATH is
// still found.
func TestFindsUsersTorch(t *testing.T) {
	const version = `getattr(__import__("torch"), "__version__", "another")`
	t.Run("PYTHONPATH", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "torch.py"), []byte("__version__ = 'from PYTHONPATH'\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PYTHONPATH", dir)
		a, err := with(t, answering(version))
		if err != nil || a.Torch != "from PYTHONPATH" {
			t.Errorf("answer %+v, %v", a, err)
		}
	})
	t.Run("user site", func(t *testing.T) {
		base := t.TempDir()
		t.Setenv("PYTHONUSERBASE", base)
		out, err := exec.Command(real(t), "-c", "import site; print(site.getusersitepackages())").Output()
		dir := strings.TrimSpace(string(out))
		if err != nil || !strings.HasPrefix(dir, base) {
			t.Fatalf("user site %q, %v", dir, err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "torch.py"), []byte("__version__ = 'from the user site'\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		a, err := with(t, answering(version))
		if err != nil || a.Torch != "from the user site" {
			t.Errorf("answer %+v, %v", a, err)
		}
	})
}
