// Package outfile writes the files that commands make, and spares those that
// nobody meant to lose.
//
// It is the one way to write a file: [New] refuses a name under which the
// command would replace what it reads, or a file of another kind than the one
// it writes, and only what New returns can be written. Writing is all or
// nothing: the content goes to a temporary name in the same folder, which is
// renamed when it is complete.
package outfile

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Kind is a sort of file, such as a PNG figure.
type Kind struct {
	// Name with its article, for messages.
	Name string
	// Is reports whether f is of this kind.
	Is func(f *os.File) bool
}

// headSize is how much of a file [Head] shows, in bytes.
const headSize = 4 << 10

// Head makes a Kind.Is that looks at no more than the first 4 KiB.
func Head(is func(head []byte) bool) func(*os.File) bool {
	return func(f *os.File) bool {
		head, err := io.ReadAll(io.LimitReader(f, headSize))
		return err == nil && is(head)
	}
}

// Prefix makes a Kind.Is for files that begin with s.
func Prefix(s string) func(*os.File) bool {
	return Head(func(head []byte) bool { return bytes.HasPrefix(head, []byte(s)) })
}

// Source is a file that the command uses otherwise.
type Source struct {
	// Path of the file; it need not exist.
	Path string
	// What the file is, for messages: "the input".
	What string
	// Info is what is known of an opened file without a path, such as standard
	// input; nil = look at Path.
	Info fs.FileInfo
}

// File is a file that may be written.
type File struct {
	path    string
	kind    Kind
	sources []Source
}

// New is the file of the given kind at path. It refuses
//   - a file of sources, under whatever name: also through a link, and though
//     it does not exist yet;
//   - an existing file that is neither empty nor of the kind;
//   - a file that is protected against writing, a folder and a disk.
//
// Other devices and pipes, such as /dev/stdout, are written to as they are.
func New(path string, kind Kind, sources ...Source) (*File, error) {
	f := &File{path, kind, sources}
	if _, _, err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

// Path is the name as given to New.
func (f *File) Path() string { return f.path }

// check applies the rules of New to what is there now; st is nil when nothing
// is. target is the file itself where path is a link.
func (f *File) check() (target string, st fs.FileInfo, err error) {
	if f.path == "" {
		return "", nil, errors.New("the name of the file to write is empty; is a variable of the shell not set?")
	}
	st, err = os.Stat(f.path)
	if err != nil {
		st = nil
		if link, e := os.Lstat(f.path); e == nil && link.Mode()&fs.ModeSymlink != 0 {
			return "", nil, fmt.Errorf("%s is a link that leads nowhere; write to another file", f.path)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
	for _, s := range f.sources {
		if f.same(st, s) {
			return "", nil, fmt.Errorf("%s is %s; write to another file", f.path, s.What)
		}
	}
	if st == nil {
		return f.path, nil, nil
	}
	switch mode := st.Mode(); {
	case mode.IsDir():
		return "", nil, fmt.Errorf("%s is a folder; write to another file", f.path)
	case mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0:
		return "", nil, fmt.Errorf("%s is a disk; write to another file", f.path)
	case !mode.IsRegular():
		return f.path, st, nil
	case mode.Perm()&0o222 == 0:
		return "", nil, fmt.Errorf("%s is write-protected; write to another file", f.path)
	}
	// Renaming would replace what may not be written to.
	w, err := os.OpenFile(f.path, os.O_WRONLY, 0)
	if err != nil {
		return "", nil, fmt.Errorf("%w; write to another file", err)
	}
	if err := w.Close(); err != nil {
		return "", nil, err
	}
	if st.Size() > 0 {
		r, err := os.Open(f.path)
		if err != nil {
			return "", nil, fmt.Errorf("%w, so its content cannot be told; write to another file", err)
		}
		defer r.Close()
		if !f.kind.Is(r) {
			return "", nil, fmt.Errorf("%s exists and is not %s; write to another file, or remove it first", f.path, f.kind.Name)
		}
	}
	// Write through a link instead of replacing it.
	target, err = filepath.EvalSymlinks(f.path)
	return target, st, err
}

// same reports whether the output, of which st is known (nil = it does not
// exist), is the file s.
func (f *File) same(st fs.FileInfo, s Source) bool {
	src := s.Info
	if src == nil {
		if s.Path == "" {
			return false
		}
		var err error
		if src, err = os.Stat(s.Path); err != nil {
			return st == nil && sameName(f.path, s.Path)
		}
	}
	return st != nil && st.Mode().IsRegular() && os.SameFile(st, src)
}

// sameName reports whether two names of files that do not exist are one: the
// same name in the same folder.
func sameName(a, b string) bool {
	if filepath.Base(a) != filepath.Base(b) {
		return false
	}
	da, err := os.Stat(filepath.Dir(a))
	if err != nil {
		return false
	}
	db, err := os.Stat(filepath.Dir(b))
	return err == nil && os.SameFile(da, db)
}

// Write writes the file through write, so that it either holds all of it or is
// left as it was: also when write fails or panics, and when the machine stops.
// The rules of New are checked once more before. A device or pipe gets what
// write wrote before it failed.
func (f *File) Write(write func(io.Writer) error) (err error) {
	target, st, err := f.check()
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o666)
	if st != nil {
		if !st.Mode().IsRegular() {
			out, err := os.OpenFile(target, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			b := bufio.NewWriter(out)
			return errors.Join(write(b), b.Flush(), out.Close())
		}
		mode = st.Mode().Perm()
	}
	dir, base := filepath.Split(target)
	temp := filepath.Join(dir, "."+base+"."+rand.Text()[:8]+".tmp")
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no folder %s", dir)
		}
		return err
	}
	done := false
	defer func() {
		if !done {
			out.Close()
			os.Remove(temp)
		}
	}()
	b := bufio.NewWriterSize(out, 1<<16)
	if err := write(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	// Without this, a machine that stops may keep the new name and lose the
	// content. Some network file systems cannot do it.
	if err := out.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp, target); err != nil {
		return err
	}
	done = true
	return nil
}
