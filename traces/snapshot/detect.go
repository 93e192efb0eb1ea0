package snapshot

import (
	"bytes"
	"errors"
	"fmt"
)

// Detect reports whether data that begin with head look like a pickle. Files
// of every pickle are taken, so that Read can say what is wrong with those
// that hold no snapshot. A snapshot written as JSON is one, too.
func Detect(head []byte) bool {
	if len(head) < 2 {
		return false
	}
	if detectJSON(head) {
		return true
	}
	switch head[0] {
	case 0x80: // PROTO, protocols 2 to 5; later ones have a clear error
		return head[1] < 0x20
	case '}', ']': // protocol 1: an empty dict or list, then BINPUT or MARK
		return head[1] == 'q' || head[1] == 'r' || head[1] == '('
	case '(': // protocol 0: MARK DICT or MARK LIST, then PUT or the first key or item
		return (head[1] == 'd' || head[1] == 'l') && (len(head) == 2 || bytes.IndexByte([]byte("pVS("), head[2]) >= 0)
	}
	return false
}

const howTo = "a snapshot is what torch.cuda.memory._dump_snapshot(\"FILE.pickle\") writes"

// notASnapshot explains what a file is that does not begin like a pickle.
func notASnapshot(head []byte) error {
	trimmed := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	lower := bytes.ToLower(trimmed[:min(len(trimmed), 256)])
	prefix := func(s string) bool { return bytes.HasPrefix(head, []byte(s)) }
	switch {
	case len(head) == 0:
		return errors.New("the file is empty; record again, and check that the disk was not full")
	case prefix("PK\x03\x04"):
		return fmt.Errorf("this is a zip archive, as torch.save writes it, not a memory snapshot; %s (pickle.dump, not torch.save)", howTo)
	case prefix("\x1f\x8b"), prefix("\x28\xb5\x2f\xfd"), prefix("BZh"), prefix("\xfd7zXZ"):
		return errors.New("the data are compressed; decompress them first")
	case prefix("version https://git-lfs"):
		return errors.New("this is a Git LFS pointer, not the file itself; fetch it with git lfs pull")
	case bytes.HasPrefix(lower, []byte("<!doctype html")), bytes.HasPrefix(lower, []byte("<html")), bytes.HasPrefix(lower, []byte("<head")):
		return errors.New("this is a web page, not a memory snapshot: the download got an error or a login page; download the file itself (the raw file)")
	case len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '['):
		return fmt.Errorf("this is JSON, not a pickled memory snapshot; %s, and the JSON file beside it is only read together with it", howTo)
	case len(trimmed) > 0 && trimmed[0] == '<':
		return fmt.Errorf("this is XML or HTML, not a memory snapshot; %s", howTo)
	}
	return fmt.Errorf("the file does not begin like a pickle (first bytes % x); %s", head[:min(len(head), 8)], howTo)
}
