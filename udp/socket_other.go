//go:build !linux

package udp

func openNative(c Config) (Link, error) { return openPortable(c) }

func openNativeShards(c Config, _ int) ([]Link, error) {
	l, err := Open(c)
	return []Link{l}, err
}
