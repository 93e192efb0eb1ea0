package pickle

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// unquote decodes the argument of STRING: a Python 2 string literal.
func unquote(s []byte) ([]byte, bool) {
	s = bytes.TrimRight(s, " \t\r")
	if len(s) < 2 || s[0] != s[len(s)-1] || (s[0] != '\'' && s[0] != '"') {
		return nil, false
	}
	s = s[1 : len(s)-1]
	if bytes.IndexByte(s, '\\') < 0 {
		return s, true
	}
	var out []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		if i == len(s) {
			return nil, false
		}
		switch s[i] {
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case '\\', '\'', '"':
			out = append(out, s[i])
		case 'x':
			if i+2 >= len(s) {
				return nil, false
			}
			n, err := strconv.ParseUint(string(s[i+1:i+3]), 16, 8)
			if err != nil {
				return nil, false
			}
			out = append(out, byte(n))
			i += 2
		default:
			out = append(out, '\\', s[i])
		}
	}
	return out, true
}

// rawUnicode decodes the argument of UNICODE, Latin-1 with \u escapes of four
// and \U escapes of eight hexadecimal digits, to UTF-8.
func rawUnicode(s []byte) ([]byte, bool) {
	plain := true
	for _, c := range s {
		if c >= 0x80 || c == '\\' {
			plain = false
			break
		}
	}
	if plain {
		return s, true
	}
	var out []byte
	for i := 0; i < len(s); i++ {
		digits := 0
		if s[i] == '\\' && i+1 < len(s) {
			switch s[i+1] {
			case 'u':
				digits = 4
			case 'U':
				digits = 8
			}
		}
		if digits == 0 {
			out = utf8.AppendRune(out, rune(s[i]))
			continue
		}
		if i+1+digits >= len(s) {
			return nil, false
		}
		n, err := strconv.ParseUint(string(s[i+2:i+2+digits]), 16, 32)
		if err != nil {
			return nil, false
		}
		r := rune(n)
		if n > utf8.MaxRune || utf16.IsSurrogate(r) {
			r = utf8.RuneError
		}
		out = utf8.AppendRune(out, r)
		i += 1 + digits
	}
	return out, true
}
