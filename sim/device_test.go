package sim

import "testing"

// TestRandomAddressesDoNotRunOut: random placement finds room for more
// segments, and larger ones, than any card has.
func TestRandomAddressesDoNotRunOut(t *testing.T) {
	d := NewDevice(DeviceConfig{Addresses: AddressesRandom, Seed: 1})
	for range 64 {
		if _, err := d.Malloc(1 << 50); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[uint64]bool)
	for range 200_000 {
		addr, err := d.Malloc(2 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if seen[addr] {
			t.Fatalf("address %#x was given twice", addr)
		}
		seen[addr] = true
	}
}
