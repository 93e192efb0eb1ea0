package snapshot

import (
	"bytes"
	"context"
	"os"
	"reflect"
	"strings"
	"testing"

	"allocsim/internal/pickle/pickletest"
	"allocsim/traces"
)

func readTestdata(t *testing.T, name string) (*traces.Trace, error) {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := Read(context.Background(), f, Options{})
	if err != nil {
		return nil, err
	}
	return rec.Devices[0], nil
}

// TestShapes reads one snapshot as people hand it on: as JSON, inside a dict, a
// tuple or a list, and with a second one behind it. All are the same trace.
func TestShapes(t *testing.T) {
	want, err := readTestdata(t, "wrapped.pickle")
	if err != nil {
		t.Fatal(err)
	}
	if len(want.Events) == 0 {
		t.Fatal("no events")
	}
	for _, name := range []string{"snapshot.json", "tuple.pickle", "list_of_snapshots.pickle", "appended.pickle"} {
		got, err := readTestdata(t, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(got.Events, want.Events) || !reflect.DeepEqual(got.Recorded, want.Recorded) {
			t.Errorf("%s is another trace than wrapped.pickle", name)
		}
		if second := strings.Contains(strings.Join(got.Notes, " "), "only the first is read"); second != (name == "appended.pickle") {
			t.Errorf("%s: notes %q", name, got.Notes)
		}
	}
	snap := pickletest.Dict{pickletest.KV("segments", pickletest.List{}), pickletest.KV("device_traces", pickletest.List{})}
	two := pickletest.Marshal(pickletest.List{snap, append(pickletest.Dict{}, snap...)}, 4)
	_, err = Read(context.Background(), bytes.NewReader(two), Options{})
	if err == nil || !strings.Contains(err.Error(), "2 snapshots") {
		t.Errorf("two snapshots in a list: %v", err)
	}
	_, err = Read(context.Background(), strings.NewReader(`{"segments": [`), Options{})
	if err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a JSON that is cut off: %v", err)
	}
}

// TestRingOfOne reads histories of one entry, the default of the old
// _record_memory_history(True): the files hold segments and nothing else.
func TestRingOfOne(t *testing.T) {
	for _, name := range []string{"ring1_alloc.pickle", "ring1_free.pickle", "ring1_snapshot.pickle"} {
		tr, err := readTestdata(t, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(tr.Events) != 0 || len(tr.Recorded.Final.Segments) == 0 {
			t.Errorf("%s: %d events, %d segments", name, len(tr.Events), len(tr.Recorded.Final.Segments))
		}
		if all := strings.Join(tr.Notes, " "); !strings.Contains(all, "cut to 1 entry") || strings.Contains(all, "skip_actions") {
			t.Errorf("%s: notes %q", name, tr.Notes)
		}
	}
}
