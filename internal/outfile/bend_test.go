package outfile

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what is spared and how files are written, rule by rule.
func TestBends(t *testing.T) {
	bend.Run(t, []bend.Bend{
		{Rule: "half a file is left where writing failed", File: "outfile.go", Test: "TestWrite",
			Old: "out.Close()\n\t\t\tos.Remove(temp)", Bent: "out.Close()\n\t\t\tos.Rename(temp, target)"},
		{Rule: "a link is replaced by a file", File: "outfile.go", Test: "TestWriteThroughLink",
			Old: "filepath.EvalSymlinks(f.path)", Bent: "filepath.Abs(f.path)"},
		{Rule: "permissions are lost", File: "outfile.go", Test: "TestWrite",
			Old: "mode = st.Mode().Perm()", Bent: "mode = 0o600"},
		{Rule: "files are one by name only", File: "outfile.go", Test: "TestNewRefuses",
			Old: "return st != nil && st.Mode().IsRegular() && os.SameFile(st, src)", Bent: "return st != nil && f.path == s.Path"},
		{Rule: "two new outputs may have one name", File: "outfile.go", Test: "TestNewRefuses",
			Old: "return st == nil && sameName(f.path, s.Path)", Bent: "return false"},
		{Rule: "new files are one by their last name", File: "outfile.go", Test: "TestNewRefuses",
			Old: "return err == nil && os.SameFile(da, db)", Bent: "return err == nil && (da == db || true)"},
		{Rule: "a file of another kind is replaced", File: "outfile.go", Test: "TestNewRefuses",
			Old: "if !f.kind.Is(r) {", Bent: "if false {"},
		{Rule: "a write-protected file is replaced", File: "outfile.go", Test: "TestNewRefuses",
			Old: "mode.Perm()&0o222 == 0", Bent: "mode.Perm()&0o222 == 0o1000"},
		{Rule: "a link that leads nowhere is replaced", File: "outfile.go", Test: "TestNewRefuses",
			Old: "link.Mode()&fs.ModeSymlink != 0", Bent: "link.Mode()&fs.ModeSymlink == 1"},
		{Rule: "what has come since New is replaced", File: "outfile.go", Test: "TestWriteChecksAgain",
			Old: "target, st, err := f.check()\n\tif err != nil {\n\t\treturn err", Bent: "target, st, err := f.check()\n\tif err != nil {\n\t\ttarget, st, err = f.path, nil, nil"},
		{Rule: "a pipe is replaced by a file", File: "outfile.go", Test: "TestWritePipe",
			Old: "\t\tif !st.Mode().IsRegular() {", Bent: "\t\tif st.Mode().IsDir() {"},
	})
}
