// OpenCV's DNN reads the same cfg and weights: outputs of given convolutions, for opencv_dnn.py.
//
//   dnn_forward CFG WEIGHTS IMAGE OUTPUT LAYER...
//
// IMAGE: FP32, planes of the network's input; OUTPUT: those of the layers, one after the other.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <opencv2/dnn.hpp>

static int number_of(const std::string &cfg, const std::string &key)
{
    std::ifstream file(cfg);
    for (std::string line; std::getline(file, line);)
        if (line.compare(0, key.size() + 1, key + "=") == 0)
            return std::stoi(line.substr(key.size() + 1));
    return 0;
}

static cv::Mat read_image(const std::string &cfg, const char *path)
{
    int shape[] = {1, 3, number_of(cfg, "height"), number_of(cfg, "width")};
    cv::Mat image(4, shape, CV_32F);
    std::ifstream file(path, std::ios::binary);
    file.read(image.ptr<char>(), static_cast<std::streamsize>(image.total() * sizeof(float)));
    return image;
}

int main(int argc, char **argv)
{
    if (argc < 6) return 2;
    cv::dnn::Net net = cv::dnn::readNetFromDarknet(argv[1], argv[2]);
    net.setPreferableBackend(cv::dnn::DNN_BACKEND_OPENCV);
    net.enableFusion(false);
    std::vector<std::string> names;
    for (int i = 5; i < argc; i++)
        names.push_back("conv_" + std::string(argv[i]));
    std::vector<cv::Mat> outputs;
    net.setInput(read_image(argv[1], argv[3]));
    net.forward(outputs, names);
    std::ofstream file(argv[4], std::ios::binary);
    for (const cv::Mat &output : outputs)
        file.write(output.ptr<char>(),
                   static_cast<std::streamsize>(output.total() * sizeof(float)));
    return file.good() ? 0 : 1;
}
