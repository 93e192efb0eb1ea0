package bytesize

import "strconv"

// OrNone is a number of bytes that may be unlimited: 0, and null in JSON.
type OrNone int64

// MarshalJSON writes the number, or null where there is none.
func (n OrNone) MarshalJSON() ([]byte, error) {
	if n == 0 {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(n), 10), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *OrNone) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*n = 0
		return nil
	}
	v, err := strconv.ParseInt(string(text), 10, 64)
	*n = OrNone(v)
	return err
}
