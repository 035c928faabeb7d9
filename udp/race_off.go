//go:build !race

package udp

func beforeSend()   {}
func afterReceive() {}
