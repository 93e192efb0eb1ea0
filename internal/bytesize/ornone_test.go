package bytesize

import (
	"encoding/json"
	"testing"
)

func TestOrNone(t *testing.T) {
	for n, want := range map[OrNone]string{0: "null", 5: "5", 1 << 40: "1099511627776"} {
		got, err := json.Marshal(n)
		if err != nil || string(got) != want {
			t.Errorf("%d: %s, %v; want %s", n, got, err, want)
		}
		var back OrNone
		if err := json.Unmarshal(got, &back); err != nil || back != n {
			t.Errorf("%s reads as %d, %v", got, back, err)
		}
	}
	var n OrNone
	if json.Unmarshal([]byte("\"x\""), &n) == nil {
		t.Error("text is taken")
	}
}
